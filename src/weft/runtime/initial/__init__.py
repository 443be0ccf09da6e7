"""Initial weights: stages are made where they run, of functions, on meta or from a checkpoint."""

"""What computes beside its host: streams and events of a GPU, and its numbers."""

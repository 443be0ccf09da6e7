"""A stage at work: any module as people write it, its values, its randomness and its state."""

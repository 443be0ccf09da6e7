"""Weights between two updates: versions, gradients, norms, and what changes them."""

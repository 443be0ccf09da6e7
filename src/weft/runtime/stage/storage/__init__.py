"""Storage: what is kept of the tensors that autograd saves in a forward."""

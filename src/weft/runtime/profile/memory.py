"""Memory: what a stage holds, and what a microbatch leaves in it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.runtime.precision import Precision


class SavedBytes:
    """Counts the bytes that autograd keeps, once each, without the weights."""

    def __init__(self, weights: Iterable[Tensor]) -> None:
        self._known = {weight.untyped_storage().data_ptr() for weight in weights}
        self._alive: list[Tensor] = []
        self.size = 0

    def counting(self) -> AbstractContextManager[None]:
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._known:
            self._known.add(storage.data_ptr())
            self._alive.append(tensor)  # or its address might be given out again
            self.size += storage.nbytes()
        return tensor


def size_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of some tensors."""
    return sum(tensor.nbytes for tensor in tensors)


def copied_bytes(module: nn.Module, precision: Precision) -> int:
    """Bytes of the copies of weights that are computed with."""
    types, named = precision.types_of(module), module.named_parameters()
    copied = ((types[name], weight) for name, weight in named if name in types)
    return sum(dtype.itemsize * w.numel() for dtype, w in copied if dtype != w.dtype)


def gradient_bytes(module: nn.Module) -> int:
    """Bytes of the gradients of all weights that learn."""
    return size_of(weight for weight in module.parameters() if weight.requires_grad)


def state_bytes(optimizers: Iterable[Optimizer]) -> int:
    """Bytes of what optimizers remember, once they have stepped."""
    return size_of(
        value
        for optimizer in optimizers
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    )

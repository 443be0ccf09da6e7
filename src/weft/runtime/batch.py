"""Batches: what a user gives for a step, cut into microbatches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from weft.errors import InputError

Microbatch: TypeAlias = Tensor | tuple[Tensor, ...]
Data: TypeAlias = Microbatch | list[Tensor] | list[tuple[Tensor, ...]] | list[Microbatch]


def cut(data: Data, microbatches: int, name: str) -> list[tuple[Tensor, ...]]:
    """The tensors of each microbatch.

    A tensor, or a tuple of tensors, is cut along the first dimension, and the last microbatch may
    be shorter. A list holds microbatches that are cut already, of any shapes.
    """
    if isinstance(data, list):
        if len(data) != microbatches:
            raise InputError(f"a {name} of {len(data)} microbatches where {microbatches} are run")
        return [_several(microbatch) for microbatch in data]
    tensors = _several(data)
    sizes = {len(tensor) for tensor in tensors}
    if len(sizes) != 1:
        raise InputError(f"the tensors of a {name} have different lengths: {sorted(sizes)}")
    size = sizes.pop()
    length = -(-size // microbatches)
    if (microbatches - 1) * length >= size:
        raise InputError(
            f"a {name} of {size} cannot be cut into {microbatches} microbatches of {length} with"
            f" something left for the last; use {microbatches * max(1, size // microbatches)}"
        )
    pieces = [torch.split(tensor, length) for tensor in tensors]
    return list(zip(*pieces, strict=True))


def _several(data: Microbatch) -> tuple[Tensor, ...]:
    return (data,) if isinstance(data, Tensor) else tuple(data)


def weights_of(weights: Sequence[float] | None, microbatches: int) -> tuple[float, ...]:
    """How much each microbatch's loss counts: 1/N unless something else is given."""
    if weights is None:
        return (1 / microbatches,) * microbatches
    if len(weights) != microbatches:
        raise InputError(f"{len(weights)} weights for {microbatches} microbatches")
    return tuple(float(weight) for weight in weights)


def checksum(data: Iterable[Sequence[Tensor]]) -> str:
    """Of all bytes, shapes and types."""
    found = hashlib.sha256()
    for tensors in data:
        for tensor in tensors:
            found.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            plain = tensor.detach().cpu().contiguous().flatten()
            found.update(plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    return found.hexdigest()

"""Batches: what a user gives for a step, cut into microbatches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from weft.errors import InputError
from weft.runtime.stage.values import Value

Data: TypeAlias = Any  # a tree of tensors, or a list of them, one for each microbatch


def cut(data: Data, microbatches: int, name: str) -> list[Value]:
    """The value of each microbatch.

    A tensor, or each tensor of a tuple or dict, is cut along the first dimension, and the last
    microbatch may be shorter; what has no dimension goes to all. A list holds microbatches that
    are cut already, of any shapes.
    """
    if isinstance(data, list):
        if len(data) != microbatches:
            raise InputError(f"a {name} of {len(data)} microbatches where {microbatches} are run")
        return [_whole(microbatch, name) for microbatch in data]
    whole = _whole(data, name)
    sizes = {place: len(tensor) for place, tensor in whole.named() if tensor.dim()}
    if len({*sizes.values()}) > 1:
        named = ", ".join(f"{place} {size}" for place, size in sizes.items())
        raise InputError(f"the tensors of a {name} have different lengths: {named}")
    pieces = [_pieces(tensor, microbatches, name) for tensor in whole.leaves]
    return [whole.with_leaves(leaves[index] for leaves in pieces) for index in range(microbatches)]


def _whole(data: Any, name: str) -> Value:
    is_single = type(data) is tuple and len(data) == 1
    whole = Value.of(data[0] if is_single else data, f"the {name}")
    for place, tensor in whole.named():
        if tensor.requires_grad:
            raise InputError(
                f"the {name}{place} requires a gradient, which a step does not give back; detach"
                f" it, or make it a parameter of the first stage"
            )
    return whole


def _pieces(tensor: Tensor, microbatches: int, name: str) -> Sequence[Tensor]:
    if not tensor.dim():
        return (tensor,) * microbatches
    size = len(tensor)
    length = -(-size // microbatches)
    if (microbatches - 1) * length >= size:
        raise InputError(
            f"a {name} of {size} cannot be cut into {microbatches} microbatches of {length} with"
            f" something left for the last; use {microbatches * max(1, size // microbatches)}"
        )
    return torch.split(tensor, length)


def weights_of(weights: Sequence[float] | None, microbatches: int) -> tuple[float, ...]:
    """How much each microbatch's loss counts: 1/N unless something else is given."""
    if weights is None:
        return (1 / microbatches,) * microbatches
    if len(weights) != microbatches:
        raise InputError(f"{len(weights)} weights for {microbatches} microbatches")
    return tuple(float(weight) for weight in weights)


def checksum(data: Iterable[Value | Sequence[Tensor]]) -> str:
    """Of all bytes, shapes and types."""
    found = hashlib.sha256()
    for one in data:
        if isinstance(one, Value):
            found.update(repr(one.structure).encode())
        for tensor in one.leaves if isinstance(one, Value) else one:
            found.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            plain = tensor.detach().cpu().contiguous().flatten()
            found.update(plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    return found.hexdigest()

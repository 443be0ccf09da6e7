"""Batches: what a user gives for a step, cut into microbatches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from weft.errors import InputError
from weft.runtime.stage.values import Value

ALIGNMENT = 64  # bytes, of what torch allots on a CPU

Data: TypeAlias = Any  # a tree of tensors, or a list of them, one for each microbatch


class Cut(NamedTuple):
    """A batch in microbatches.

    given    how many of them it made: those after repeat the last one, and count nothing
    is_list  whether its user has cut it
    first    the number of its first microbatch, where other replicas have those before
    """

    values: list[Value]
    given: int
    is_list: bool
    first: int = 0

    def among(self, replicas: int, replica: int) -> Cut:
        """As one replica's share of a batch; the places of others hold the same."""
        first = replica * len(self.values)
        return self._replace(values=self.values * replicas, first=first)


def cut(data: Data, microbatches: int, name: str) -> list[Value]:
    """The value of each microbatch.

    A tensor, or each tensor of a tuple or dict, is cut along the first dimension, and the last
    microbatch may be shorter; what has no dimension goes to all. A list holds microbatches that
    are cut already, of any shapes.
    """
    values, given, *_ = filled(data, microbatches, name)
    if given < microbatches:
        size, length = sum(map(rows_of, values[:given])), rows_of(values[0])
        raise InputError(
            f"a {name} of {size} cannot be cut into {microbatches} microbatches of {length} with"
            f" something left for the last; use {microbatches * max(1, size // microbatches)}"
        )
    return values


def filled(data: Data, microbatches: int, name: str) -> Cut:
    """The same for a batch that teaches nothing, which may be too small for as many."""
    if isinstance(data, list):
        if len(data) != microbatches:
            raise InputError(f"a {name} of {len(data)} microbatches where {microbatches} are run")
        values = [_whole(microbatch, name) for microbatch in data]
        values = [value.with_leaves(map(_aligned, value.leaves)) for value in values]
        return Cut(values, microbatches, is_list=True)
    whole = _whole(data, name)
    sizes = {place: len(tensor) for place, tensor in whole.named() if tensor.dim()}
    if len({*sizes.values()}) > 1:
        named = ", ".join(f"{place} {size}" for place, size in sizes.items())
        raise InputError(f"the tensors of a {name} have different lengths: {named}")
    size = next(iter(sizes.values()), microbatches)
    if not size:
        raise InputError(f"a {name} of no rows has nothing to cut; leave it out")
    length = -(-size // microbatches)
    given = -(-size // length)
    pieces = [
        [*map(_aligned, torch.split(leaf, length))] if leaf.dim() else (_aligned(leaf),) * given
        for leaf in whole.leaves
    ]
    values = [whole.with_leaves(leaves[index] for leaves in pieces) for index in range(given)]
    return Cut([*values, *values[-1:] * (microbatches - given)], given, is_list=False)


def _aligned(piece: Tensor) -> Tensor:
    """A piece in memory as torch allots it: kernels may add up in another order elsewhere.

    What was made in inference mode is of no use outside of it, and is copied as well.
    """
    is_elsewhere = piece.data_ptr() % ALIGNMENT
    return piece.clone() if is_elsewhere or piece.is_inference() else piece


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


def check_together(inputs: Cut, targets: Cut) -> None:
    """Refuse a target whose rows are cut apart from those of the batch that they belong to.

    Each may have several, as tokens of a sentence; whoever gives a list has cut it.
    """
    if inputs.is_list or targets.is_list or not (_has_rows(inputs) and _has_rows(targets)):
        return
    rows, wanted = ([*map(rows_of, one.values[: one.given])] for one in (inputs, targets))
    shares = [own * sum(wanted) for own in rows]
    if shares != [own * sum(rows) for own in wanted]:
        raise InputError(
            f"a batch of {sum(rows)} rows is cut into microbatches of {_listed(rows)}, and a target"
            f" of {sum(wanted)} into {_listed(wanted)}: rows that belong together would be apart."
            f" Give both as many rows, or both as lists of microbatches"
        )


def _has_rows(one: Cut) -> bool:
    return any(leaf.dim() for value in one.values[:1] for leaf in value.leaves)


def _listed(rows: Sequence[int]) -> str:
    return ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")


def weights_of(weights: Sequence[float] | None, microbatches: int) -> tuple[float, ...]:
    """How much each microbatch's loss counts: 1/N unless something else is given."""
    if weights is None:
        return (1 / microbatches,) * microbatches
    if len(weights) != microbatches:
        raise InputError(f"{len(weights)} weights for {microbatches} microbatches")
    return tuple(float(weight) for weight in weights)


def rows_of(*values: Value) -> int:
    """The rows of a microbatch: the length of the first tensor with a dimension; else one."""
    return next((len(leaf) for value in values for leaf in value.leaves if leaf.dim()), 1)


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

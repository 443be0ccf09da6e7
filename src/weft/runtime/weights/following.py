"""Following: backwards that find the newest weights, where a method keeps no others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from weft.errors import InputError
from weft.runtime.stage.cast import cast_from
from weft.runtime.weights.versions import Stash


@contextmanager
def following(stashes: Sequence[Stash]) -> Iterator[None]:
    """Let backwards of what runs here find the newest weights, as they are by then.

    What autograd saves of a leaf, or of its cast under autocast, is kept as a place in its weight,
    which may change meanwhile.
    """
    weights = {
        _storage(leaf): stash.weight(name)
        for stash in stashes
        for name, leaf in stash.leaves(stash.newest).items()
    }

    def pack(saved: Tensor) -> Tensor | Place:
        found = cast_from(saved)
        leaf = saved if found is None else found
        weight = weights.get(_storage(leaf))
        if weight is None:
            return saved
        types, offset = (leaf.dtype, saved.dtype), int(saved.storage_offset())
        return Place(weight, types, saved.size(), saved.stride(), offset)

    is_running = True

    def unpack(packed: Tensor | Place) -> Tensor:
        if is_running:
            raise InputError(
                "a stage differentiates inside its forward, and this program stashes nothing: a"
                " backward looks up newer weights, and this one would not. Use a schedule that"
                " stashes"
            )
        return _found(packed)

    with saved_tensors_hooks(pack, unpack):
        try:
            yield
        finally:
            is_running = False


def _storage(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


class Place(NamedTuple):
    """A view of a weight, in the type that stages compute with, and then in that of the view."""

    weight: nn.Parameter
    types: tuple[torch.dtype, torch.dtype]
    size: Sequence[int]
    stride: Sequence[int]
    offset: int


def _found(packed: Tensor | Place) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    computed, seen = packed.types
    newest = packed.weight.detach().to(computed).to(seen)
    return newest.as_strided(packed.size, packed.stride, packed.offset)

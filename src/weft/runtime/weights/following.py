"""Following: backwards that find the newest weights, where a method keeps no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.runtime.stage.cast import cast_from
from weft.runtime.weights.versions import Stash


class Followed:
    """Lets backwards of what runs inside find the newest weights, as they are by then.

    What autograd saves of a leaf, or of its cast under autocast, is kept as a place in its weight,
    which may change meanwhile.
    """

    def __init__(self, stashes: Sequence[Stash]) -> None:
        self._is_running = False
        self._weights = {
            _storage(leaf): stash.weight(name)
            for stash in stashes
            for name, leaf in stash.leaves(stash.newest).items()
        }

    def __enter__(self) -> Self:
        self._is_running = True
        return self

    def __exit__(self, *_: object) -> None:
        self._is_running = False

    def store(self, tensor: Tensor) -> Place | None:
        """Where in a weight a tensor is to be found; None if it is of none."""
        found = cast_from(tensor)
        leaf = tensor if found is None else found
        weight = self._weights.get(_storage(leaf))
        if weight is None:
            return None
        types, offset = (leaf.dtype, tensor.dtype), int(tensor.storage_offset())
        return Place(weight, types, tensor.size(), tensor.stride(), offset)

    def check(self) -> None:
        """Refuse a backward inside a forward."""
        if self._is_running:
            raise InputError(
                "a stage differentiates inside its forward, and this program stashes nothing: a"
                " backward looks up newer weights, and this one would not. Use a schedule that"
                " stashes"
            )


def _storage(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


@dataclass(slots=True, eq=False)
class Place:
    """A view of a weight, in the type that stages compute with, and then in that of the view."""

    weight: nn.Parameter
    types: tuple[torch.dtype, torch.dtype]
    size: Sequence[int]
    stride: Sequence[int]
    offset: int
    is_held: bool = False

    @property
    def tensors(self) -> Sequence[Tensor]:
        return ()  # the weight's memory is not the forward's

    def restored(self) -> Tensor:
        computed, seen = self.types
        newest = self.weight.detach().to(computed).to(seen)
        return newest.as_strided(self.size, self.stride, self.offset)

"""Policies: what is kept in place of each tensor that autograd saves.

    policy      takes                                   keeps
    Followed    weights, where a program stashes none   their place: the backward finds the newest
    Marked      inputs of modules stored in FP8         codes and scales
                what recomputed modules return          a note to run the module again
    (none)      whatever is left                        the tensor, which can be moved to the host

The first that takes a tensor stores it. What a module marked as recomputed computes inside never
comes here: it is saved as a note as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from weft.runtime.stage.storage.kept import SavedTensor


class Stored(Protocol):
    """What is kept in place of a tensor; `is_held` where it may be on the host."""

    is_held: bool

    @property
    def tensors(self) -> Sequence[Tensor]:
        """What it keeps in the memory of the device."""

    def restored(self) -> Tensor:
        """The tensor again."""


class StoragePolicy(Protocol):
    """Stores some of the tensors that autograd saves."""

    def store(self, tensor: Tensor) -> Stored | None:
        """What is kept in place of a tensor; None leaves it to others."""

    def check(self) -> None:
        """Refuse a backward that cannot be."""


class Mover(Protocol):
    """What moves stored tensors to the host and back."""

    def hold(self, stored: Stored) -> None:
        """Move this one with the others."""

    def refuse_away(self) -> None:
        """Refuse to compute with what is on the host."""


def storing(
    policies: Sequence[StoragePolicy], mover: Mover | None, place: str
) -> AbstractContextManager[None]:
    """Where a forward runs whose saved tensors are stored by these, and held if they can leave."""

    def pack(tensor: Tensor) -> Stored:
        stored: Stored
        for policy in policies:
            if (found := policy.store(tensor)) is not None:
                stored = found
                break
        else:  # the module may keep it too, and must not see it empty
            stored = SavedTensor(tensor.detach(), place)
        if mover is not None:
            mover.hold(stored)
        return stored

    def unpack(stored: Stored) -> Tensor:
        for policy in policies:
            policy.check()
        if mover is not None and stored.is_held:
            mover.refuse_away()
        return stored.restored()

    return saved_tensors_hooks(pack, unpack)

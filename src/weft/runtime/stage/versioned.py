"""Versioned weights: what a stage computes with where that is not its module's own parameters.

stashing   a backward computes with the versions of its forward
following  it finds the newest, as a method says that keeps no others
frozen     what never learns has one copy, where a precision asks for another type
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TypeAlias

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.runtime.stage.role import Role
from weft.runtime.stage.values import fingerprint
from weft.runtime.weights.following import Followed

StashVersions: TypeAlias = tuple[int, ...]  # one for each stash


class Versioned:
    """The weights of a stage that have versions or copies; empty where the module's own will do."""

    def __init__(self, module: nn.Module, role: Role) -> None:
        self._named = dict(module.named_parameters())
        self._index, self._stashes, self.is_stashing = role.index, role.stashes, role.is_stashing
        self.is_following = bool(role.stashes) and not role.is_stashing
        types, learning = role.precision.types_of(module), self.parameters
        self._frozen = {
            name: weight.detach().to(types[name])
            for name, weight in self._named.items()
            if weight not in learning and types.get(name, weight.dtype) != weight.dtype
        }

    def __bool__(self) -> bool:
        return bool(self._stashes or self._frozen)

    @property
    def parameters(self) -> set[nn.Parameter]:
        return {weight for stash in self._stashes for weight in stash.parameters}

    def refuse_unfrozen(self) -> None:
        """Refuse a weight that has no versions and learns, where the others have some."""
        versioned = self.parameters
        learning = (weight for weight in self._named.values() if weight.requires_grad)
        if (versioned or self._frozen) and any(weight not in versioned for weight in learning):
            raise InputError(
                f"stage {self._index} has a weight that was frozen when the pipeline was made, so"
                f" that it has no versions, and learns now; make the pipeline again"
            )

    @torch.no_grad()
    def look(self) -> None:
        """Take frozen weights as they are now."""
        for name, copy in self._frozen.items():
            copy.data.copy_(self._named[name])  # which graphs in flight do not notice

    def summing(self) -> AbstractContextManager[object]:
        """Where a backward may reach a weight several times, in parts that are added up first."""
        with ExitStack() as stack:
            for stash in self._stashes:
                stack.enter_context(stash.summing())
            return stack.pop_all()

    def take(self, versions: StashVersions) -> StashVersions:
        """Keep these until they are given back; the newest need not be kept."""
        if not self.is_stashing:
            return ()
        for stash, version in zip(self._stashes, versions, strict=True):
            stash.take(version)
        return versions

    def give_back(self, versions: StashVersions) -> None:
        for stash, version in zip(self._stashes, versions, strict=True):
            stash.give_back(version)

    def forget(self) -> None:
        """Nothing is in flight any more."""
        for stash in self._stashes:
            stash.forget()

    def leaves(self, versions: StashVersions) -> dict[str, Tensor]:
        """The weights that a forward computes with, by name."""
        if not self.is_stashing:
            versions = tuple(stash.newest for stash in self._stashes)
        pairs = zip(self._stashes, versions, strict=True)
        return self._own([self._frozen, *(stash.leaves(version) for stash, version in pairs)])

    def newest(self) -> dict[str, Tensor]:
        """The newest weights without a graph, not predicted."""
        return self._own([self._frozen, *(stash.seen() for stash in self._stashes)])

    def _own(self, stashes: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Those that are here: a segment of a stage has some of them."""
        named = (pair for stash in stashes for pair in stash.items())
        return {name: leaf for name, leaf in named if name in self._named}

    def followed(self) -> Followed:
        """Lets the backward of a forward that runs inside find the newest weights."""
        return Followed(self._stashes)

    def marks(self, swap: dict[str, Tensor], *, is_watched: bool) -> list[object]:
        """By which to see that weights have changed; watched closely, if only in their data."""
        named = (name for stash in self._stashes for name in stash.names)
        weights = [swap[name] for name in (*named, *self._frozen) if name in swap]
        prints = [fingerprint(weight) for weight in weights] if is_watched else []
        return [[weight._version for weight in weights], prints]

    def refuse_change(self) -> None:
        """Refuse a forward that has changed a weight."""
        raise InputError(
            f"stage {self._index} changes a weight in its forward, which computes with a copy of"
            f" it, as this program keeps several versions, or precision= asks for another type."
            f" Use a synchronous schedule, and no precision= or 'autocast'"
        )

    def refuse_checkpoint(self) -> None:
        raise InputError(
            f"stage {self._index} has a checkpoint, and this program stashes nothing: its backwards"
            f" look up newer weights, which a checkpoint does not do. Use a schedule that stashes"
        )

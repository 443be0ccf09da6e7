"""Versions of weights: the newest alone, or a stash of as many as a program keeps.

    slot 0   version 4   leaves of their own, which microbatches in flight may still need
    slot 1   version 5   the newest: the module's own parameters look at it

A forward computes with the leaves of its version. Their gradients flow into the `grad` of the
module's parameters, whatever the version. An update writes the slot that is needed no more, and
lets the parameters look at it: there are never more copies than slots, and the optimizer's state
exists once. Where one version is enough, the module's own parameters are all there is. Knows
weights; knows neither microbatches nor schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.runtime.device.shards import is_sharded
from weft.runtime.stage.deferred import accumulate, hooked

Leaves: TypeAlias = dict[str, Tensor]

NO_TYPES: Mapping[str, torch.dtype] = {}


class Newest:
    """Weights of a module of which one version is enough: they change in place."""

    copies = 1

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        self.parameters, self.newest = [weight for _, weight in named], 0

    def update(self, change: Callable[[], object], *, is_whole: bool = True) -> None:
        """Make the next version: the newest, changed."""
        torch.clear_autocast_cache()  # of weights as they were
        change()
        self.newest += 1

    def complete(self) -> None:
        """They are what forwards compute with."""

    def restart(self) -> None:
        """Nothing is predicted."""

    def resume(self, newest: int, versions: Mapping[int, Leaves]) -> None:
        """Go on from a version."""
        self.newest = newest

    def look(self) -> None:
        """What a user has changed is what forwards compute with."""


class Unseen(NamedTuple):
    """What forwards do not see yet: where it goes, and from what it is predicted how far."""

    leaves: Leaves
    ahead: int
    last: Sequence[Tensor]


class Stash:
    """Some weights of a module, by version.

    types  what forwards compute with, by name, where that may be another type than a weight's own
    ahead  by how many updates a version's leaves are predicted, each like the last one
    since  the version after which they are

    With either the leaves differ from the newest weights, which then have memory of their own; so
    do weights of which this process has a shard, as a DTensor keeps its memory.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, nn.Parameter]],
        copies: int,
        *,
        types: Mapping[str, torch.dtype] = NO_TYPES,
        ahead: int = 0,
        since: int = 0,
    ) -> None:
        self._weights = {name: weight for name, weight in named if weight.requires_grad}
        self._types = {name: types.get(name, w.dtype) for name, w in self._weights.items()}
        is_cast = any(self._types[name] != weight.dtype for name, weight in self._weights.items())
        self._copies, self._ahead, self._since = copies, ahead, since
        is_sharded_out = any(map(is_sharded, self._weights.values()))  # these cannot be moved
        self._is_apart = is_cast or ahead > 0 or is_sharded_out
        self._is_summing = False  # whether leaves keep the gradients of a backward until its end
        self._slots: list[Leaves | None] = [None] * copies
        self._held: list[int] = [0] * copies  # versions, one for each slot
        self._users: list[int] = [0] * copies  # forwards whose backward is to come
        self.newest = 0
        self._unseen: Unseen | None = None
        # `.data` counts changes apart, so that a step on one slot leaves graphs of another valid.
        first = {name: weight.data for name, weight in self._weights.items()}
        if self._is_apart:
            first = {name: self._empty(name).copy_(value) for name, value in first.items()}
        self._slots[0] = self._leaves(first)

    @property
    def names(self) -> list[str]:
        return [*self._weights]

    @property
    def types(self) -> Mapping[str, torch.dtype]:
        """What forwards compute with."""
        return self._types

    @property
    def most(self) -> int:
        """How many versions are kept at most."""
        return self._copies

    @property
    def is_predicting(self) -> bool:
        """Whether forwards see other values than those of a version."""
        return self._ahead > 0

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [*self._weights.values()]

    def seen(self) -> Leaves:
        """The newest weights as forwards compute with them, not predicted."""
        return {name: w.detach().to(self._types[name]) for name, w in self._weights.items()}

    def weight(self, name: str) -> nn.Parameter:
        """The newest of a weight."""
        return self._weights[name]

    @property
    def copies(self) -> int:
        """How many copies of the weights there are, the newest among them."""
        return sum(slot is not None for slot in self._slots) + self._is_apart

    def take(self, version: int) -> Leaves:
        """The leaves of a version, until they are given back."""
        slot = self._slot(version)
        self._users[slot] += 1
        return self.leaves(version)

    def give_back(self, version: int) -> None:
        self._users[version % self._copies] -= 1

    def leaves(self, version: int) -> Leaves:
        """The leaves of a version."""
        leaves = self._slots[self._slot(version)]
        assert leaves is not None
        return leaves

    def forget(self) -> None:
        """Nothing is in flight any more."""
        self._users = [0] * self._copies

    def kept(self) -> dict[int, Leaves]:
        """What the newest weights do not show: older versions, and the newest as predicted."""
        first = self.newest + (1 if self._ahead else 0)
        versions = range(max(0, self.newest - self._copies + 1), first)
        found = [one for one in versions if self._held[one % self._copies] == one]
        there = {one: self._slots[one % self._copies] for one in found}
        return {version: leaves for version, leaves in there.items() if leaves is not None}

    @torch.no_grad()
    def resume(self, newest: int, versions: Mapping[int, Leaves]) -> None:
        """Go on from a version, which the weights are, and from others, where there are any."""
        leaves = self.leaves(self.newest)  # at which the parameters look, unless these are apart
        self._slots, self._users = [None] * self._copies, [0] * self._copies
        self._slots[newest % self._copies] = leaves
        self._held, self.newest, self._since = [newest] * self._copies, newest, newest
        if self._is_apart:
            for name, leaf in leaves.items():
                leaf.data.copy_(self._weights[name])
        for version, values in versions.items():
            room = self._room(version % self._copies)
            for name, leaf in room.items():
                leaf.data.copy_(values[name])
            self._held[version % self._copies] = version

    @torch.no_grad()
    def look(self) -> None:
        """Let forwards see what a user has done to the weights while nothing was in flight."""
        newest, is_seen = self.leaves(self.newest), self._unseen is None
        for name, weight in self._weights.items():
            newest[name].requires_grad_(weight.requires_grad)
            if not self._is_apart and weight.data_ptr() != newest[name].data_ptr():
                newest[name].data.copy_(weight)  # which a user has put elsewhere
                weight.data = newest[name].data
            if is_seen and self._is_apart and not self._ahead and not any(self._users):
                newest[name].data.copy_(weight)

    @torch.no_grad()
    def restart(self) -> None:
        """Let forwards see the newest version as it is, and predict those after it."""
        self._since = self.newest
        if self._is_apart:
            for name, leaf in self.leaves(self.newest).items():
                leaf.data.copy_(self._weights[name])

    @torch.no_grad()
    def update(self, change: Callable[[], object], *, is_whole: bool = True) -> None:
        """Make the next version: the newest, changed; `complete` follows if not all of it is."""
        torch.clear_autocast_cache()  # of what is about to be written over
        before, after = self.newest % self._copies, (self.newest + 1) % self._copies
        if self._users[after]:
            raise WeftError(
                f"version {self._held[after]} is still in use, and only {self._copies} are kept"
            )
        if self._is_apart:
            self._change_apart(change, after)
            if is_whole:
                self.complete()
        else:
            self._move(before, after)
            change()
        self.newest += 1
        self._held[after] = self.newest

    def _move(self, before: int, after: int) -> None:
        """Let the parameters look at a copy of the newest version, to be changed."""
        if before == after:
            return
        source, target = self._slots[before], self._room(after)
        assert source is not None
        for name, weight in self._weights.items():
            target[name].data.copy_(source[name])
            weight.data = target[name].data

    def _change_apart(self, change: Callable[[], object], after: int) -> None:
        """Change the parameters where they are; what forwards shall see of them comes next."""
        ahead = self._ahead if self.newest >= self._since else 0
        last = [weight.clone() for weight in self._weights.values() if ahead]
        change()
        self._unseen = Unseen(self._room(after), ahead, last)

    @torch.no_grad()
    def complete(self) -> None:
        """The newest weights are whole: let forwards see them."""
        if self._unseen is None:
            return
        target, ahead, last = self._unseen
        for index, (name, weight) in enumerate(self._weights.items()):
            target[name].data.copy_(weight + ahead * (weight - last[index]) if ahead else weight)
        self._unseen = None

    def _room(self, slot: int) -> Leaves:
        found = self._slots[slot]
        if found is None:
            found = self._leaves({name: self._empty(name) for name in self._weights})
            self._slots[slot] = found
        return found

    def _empty(self, name: str) -> Tensor:
        like, dtype = self._weights[name], self._types[name]
        return torch.empty_like(like.data, dtype=dtype, requires_grad=False)

    def _leaves(self, values: Leaves) -> Leaves:
        for name, leaf in values.items():
            leaf.requires_grad_()
            pass_on = partial(self._pass_on, self._weights[name])
            leaf.register_post_accumulate_grad_hook(pass_on)  # type: ignore[no-untyped-call]
        return values

    def _pass_on(self, weight: nn.Parameter, leaf: Tensor) -> None:
        """Add a leaf's gradient to that of its weight."""
        if not self._is_summing:
            grad, leaf.grad = leaf.grad, None
            assert grad is not None
            accumulate(weight, hooked(weight, grad))

    @contextmanager
    def summing(self) -> Iterator[None]:
        """Where a backward may give a leaf several gradients, which are added up before that."""
        self._is_summing = True
        try:
            yield
        finally:
            self._is_summing = False
            for leaves in filter(None, self._slots):
                for name, leaf in leaves.items():
                    if leaf.grad is not None:
                        self._pass_on(self._weights[name], leaf)

    def _slot(self, version: int) -> int:
        slot = version % self._copies
        if self._slots[slot] is None or self._held[slot] != version:
            raise WeftError(f"version {version} is not kept; the newest is {self.newest}")
        return slot

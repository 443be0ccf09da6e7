"""Exchanges: copies of the same weights pass their gradients to each other, and sum them.

A stage has a copy on each pipe, and a tied weight one in each of its stages. Every copy gets the
sum over all of them, in the order of pipes and then of stages. Knows gradients; knows no order of
actions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from weft.runtime.device.accelerator import used_here
from weft.runtime.device.shards import like, local
from weft.runtime.stage.values import Structure
from weft.runtime.transport import Transport
from weft.runtime.transport.message import Values
from weft.runtime.weights.lines import Lines

Grads: TypeAlias = list[Tensor | None]

THERE, NOT_THERE = "+", "-"


class Holder(Protocol):
    """Some weights whose gradients of an update are closed: nothing is added to them any more."""

    weights: Sequence[nn.Parameter]

    def closed(self, update: int) -> Grads: ...

    def is_due(self, update: int, *, is_tied: bool) -> bool: ...

    def sum_up(self, update: int, grads: Grads) -> None: ...


class Member(NamedTuple):
    """One copy: where it is, and its weights if that is in this process."""

    device: int
    holders: Sequence[Holder] | None


class CopyGrads(NamedTuple):
    """The gradients of one copy: those that came from elsewhere are ours to write over."""

    grads: Tensor
    is_there: tuple[bool, ...]
    is_ours: bool

    @classmethod
    def of(cls, values: Values, *, is_ours: bool) -> CopyGrads:
        """As they travel."""
        grads, flags = values
        return cls(grads, flagged(flags), is_ours)


class Exchange:
    """Copies of some weights, of which this process holds one or more: each gets the whole sum.

    `ahead` is how many updates may be on their way at once; what is tied is summed last. `laying`
    is how many seconds the gradients of the last one took to be laid out as they are sent.
    """

    def __init__(
        self,
        number: int,
        members: Sequence[Member],
        transport: Transport,
        ahead: int = 1,
        *,
        is_tied: bool = False,
    ) -> None:
        self._is_tied = is_tied
        self._summed, self._parts, self.laying = -1, list[CopyGrads](), 0.0
        self._offered: dict[int, dict[int, Values]] = {}  # by update
        self._here = {i: one.holders for i, one in enumerate(members) if one.holders is not None}
        devices = [member.device for member in members]
        self._lines = Lines(number, devices, [*self._here], transport, ahead)

    def offer(self, update: int) -> None:
        """Send what is here, once all of it is closed, and sums that come before are made."""
        holders = (holder for found in self._here.values() for holder in found)
        if all(holder.is_due(update, is_tied=self._is_tied) for holder in holders):
            self._send(update)

    def collect(self, update: int) -> None:
        """Send what is here, and wait for what is elsewhere."""
        if update <= self._summed:
            return
        self._send(update)
        parts, here = self._offered.pop(update), [*self._here]
        found = {i: CopyGrads.of(self._for(here, p), is_ours=False) for i, p in parts.items()}
        arrived = self._lines.meet(update)
        found |= {index: CopyGrads.of(part, is_ours=True) for index, part in arrived.items()}
        self._parts = [found[index] for index in sorted(found)]

    def _send(self, update: int) -> None:
        if update <= self._summed or update in self._offered:
            return
        began = time.perf_counter()
        parts = {index: self._flat(holders, update) for index, holders in self._here.items()}
        self._offered[update], self.laying = parts, time.perf_counter() - began
        self._lines.send(update, lambda index, copies: self._for(copies, parts[index]))

    def sum_up(self, update: int) -> None:
        """Sum all that was collected, in order, and give every copy here the sum, once."""
        if update <= self._summed:
            return
        total, is_there = summed(self._parts)
        self._parts, self._summed = [], update
        self._share_out(update, total, is_there)

    def restart(self) -> None:
        """The last update may come again."""
        self._summed, self._parts = -1, []
        self._offered.clear()

    # what is sent, and what becomes of the sum

    def _flat(self, holders: Sequence[Holder], update: int) -> Values:
        """All gradients as one tensor, zeros where there is none; and which are there."""
        grads, flags = closed(holders, update)
        return torch.cat([grad.flatten() for grad in grads]).detach(), flags

    def _for(self, copies: Sequence[int], values: Values) -> Values:
        """What of it these copies need: all."""
        return values

    def _share_out(self, update: int, total: Tensor, is_there: Sequence[bool]) -> None:
        *others, last = self._here.values()
        for holders in others:
            hand_out(holders, _shapes(holders), update, total.clone(), is_there)
        hand_out(last, _shapes(last), update, total, is_there)


def flagged(flags: Structure) -> tuple[bool, ...]:
    """Which gradients are there, as that travels."""
    return tuple(flag == THERE for flag in flags.keys[0])


def closed(holders: Sequence[Holder], update: int) -> tuple[list[Tensor], Structure]:
    """The gradients of an update, zeros where there is none; and which are there."""
    weights = [weight for holder in holders for weight in holder.weights]
    grads = [grad for holder in holders for grad in holder.closed(update)]
    used_here(local(grad) for grad in grads if grad is not None)  # which their stream lets go of
    flags = "".join(NOT_THERE if grad is None else THERE for grad in grads)
    found = [
        torch.zeros_like(local(weight)) if grad is None else local(grad)
        for weight, grad in zip(weights, grads, strict=True)
    ]
    return found, Structure(str, (flags,))


def summed(parts: Sequence[CopyGrads]) -> tuple[Tensor, tuple[bool, ...]]:
    """The sum of all copies in order, and which gradients any of them has.

    Written where no memory has to be found for it: into what came from elsewhere.
    """
    total, is_there, is_ours = parts[0]
    for one in parts[1:]:
        part = one.grads.to(total.device)
        is_there = tuple(a or b for a, b in zip(is_there, one.is_there, strict=True))
        if is_ours:
            total.add_(part)
        else:
            total = part.add_(total) if one.is_ours else total + part
        is_ours = True
    return total, is_there


def _shapes(holders: Sequence[Holder]) -> list[Tensor]:
    return [weight for holder in holders for weight in holder.weights]


def hand_out(
    holders: Sequence[Holder],
    shapes: Sequence[Tensor],
    update: int,
    total: Tensor,
    is_there: Sequence[bool],
) -> None:
    """Give holders their gradients, of the shapes and types of some tensors, from one tensor."""
    shards = [local(shape) for shape in shapes]
    parts = torch.split(total, [shard.numel() for shard in shards])
    grads: Grads = [
        like(shape, part.to(shard).view(shard.shape)) if has else None
        for shape, shard, part, has in zip(shapes, shards, parts, is_there, strict=True)
    ]
    for holder in holders:
        holder.sum_up(update, grads[: len(holder.weights)])
        del grads[: len(holder.weights)]

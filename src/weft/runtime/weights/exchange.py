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

from weft.ir.kinds import Direction
from weft.runtime.device.accelerator import used_here
from weft.runtime.stage.values import Structure
from weft.runtime.transport import Transport
from weft.runtime.transport.message import Message, Receive, Route, Send, Unknown, Values

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
        return cls(grads, tuple(flag == THERE for flag in flags.keys[0]), is_ours)


class Exchange:
    """Copies of some weights, of which this process holds one or more.

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
        here = next(member.device for member in members if member.holders is not None)
        away = sorted({member.device for member in members if member.holders is None})
        self._sends: list[list[tuple[int, Send]]] = []
        self._receives: list[dict[int, Receive]] = []
        for turn in range(ahead):
            sends, receives = [], {}
            for index, member in enumerate(members):
                message = Message(number, Direction.BOTH, turn * len(members) + index)
                if member.holders is None:
                    route = _route(message, member.device, here)
                    receives[index] = transport.receiver(route, Unknown())
                    continue
                for device in away:
                    route = _route(message, member.device, device)
                    sends.append((index, transport.sender(route, Unknown())))
            self._sends.append(sends)
            self._receives.append(receives)

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
        parts = self._offered.pop(update)
        receives = self._receives[update % len(self._receives)]
        away = {index: receive() for index, receive in receives.items()}
        found = {index: CopyGrads.of(part, is_ours=False) for index, part in parts.items()}
        found |= {index: CopyGrads.of(part, is_ours=True) for index, part in away.items()}
        self._parts = [found[index] for index in sorted(found)]

    def _send(self, update: int) -> None:
        if update <= self._summed or update in self._offered:
            return
        began = time.perf_counter()
        parts = {index: _flat(holders, update) for index, holders in self._here.items()}
        self._offered[update], self.laying = parts, time.perf_counter() - began
        for index, send in self._sends[update % len(self._sends)]:
            send(parts[index])

    def sum_up(self, update: int) -> None:
        """Sum all that was collected, in order, and give every copy here the sum, once."""
        if update <= self._summed:
            return
        total, is_there = _sum(self._parts)
        self._parts, self._summed = [], update
        *others, last = self._here.values()
        for holders in others:
            _hand_out(holders, update, total.clone(), is_there)
        _hand_out(last, update, total, is_there)

    def restart(self) -> None:
        """The last update may come again."""
        self._summed, self._parts = -1, []
        self._offered.clear()


def _route(message: Message, source: int, destination: int) -> Route:
    return Route(message, source, destination, "the gradients", message.edge)


def _flat(holders: Sequence[Holder], update: int) -> Values:
    """All gradients as one tensor, zeros where there is none; and which are there."""
    weights = [weight for holder in holders for weight in holder.weights]
    grads = [grad for holder in holders for grad in holder.closed(update)]
    used_here(grads)  # which their own stream lets go of
    flags = "".join(NOT_THERE if grad is None else THERE for grad in grads)
    flat = [
        (torch.zeros_like(weight) if grad is None else grad).flatten()
        for weight, grad in zip(weights, grads, strict=True)
    ]
    return torch.cat(flat).detach(), Structure(str, (flags,))


def _sum(parts: Sequence[CopyGrads]) -> tuple[Tensor, tuple[bool, ...]]:
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


def _hand_out(
    holders: Sequence[Holder], update: int, total: Tensor, is_there: Sequence[bool]
) -> None:
    weights = [weight for holder in holders for weight in holder.weights]
    parts = torch.split(total, [weight.numel() for weight in weights])
    grads: Grads = [
        part.to(weight).view_as(weight) if has else None
        for weight, part, has in zip(weights, parts, is_there, strict=True)
    ]
    for holder in holders:
        holder.sum_up(update, grads[: len(holder.weights)])
        del grads[: len(holder.weights)]

"""Exchanges: copies of the same weights pass their gradients to each other, and sum them.

A stage has a copy on each pipe, and a tied weight one in each of its stages. Every copy gets the
sum over all of them, in the order of pipes and then of stages. Knows gradients; knows no order of
actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from weft.ir.kinds import Direction
from weft.runtime.transport import Transport
from weft.runtime.transport.message import Message, Receive, Route, Send, Unknown, Values

Grads: TypeAlias = list[Tensor | None]


class Holder(Protocol):
    """Some weights whose gradients of an update are closed: nothing is added to them any more."""

    weights: Sequence[nn.Parameter]

    def closed(self, update: int) -> Grads: ...

    def sum_up(self, update: int, grads: Grads) -> None: ...


class Member(NamedTuple):
    """One copy: where it is, and its weights if that is in this process."""

    device: int
    holders: Sequence[Holder] | None


class CopyGrads(NamedTuple):
    """The gradients of one copy: those that came from elsewhere are ours to write over."""

    grads: Tensor
    is_there: Tensor
    is_ours: bool


class Exchange:
    """Copies of some weights, of which this process holds one or more.

    `ahead` is how many updates may be on their way at once.
    """

    def __init__(
        self, number: int, members: Sequence[Member], transport: Transport, ahead: int = 1
    ) -> None:
        self._summed, self._parts = -1, list[CopyGrads]()
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

    def collect(self, update: int) -> None:
        """Send what is here, and wait for what is elsewhere."""
        if update <= self._summed:
            return
        turn = update % len(self._sends)
        parts = self.laid_out(update)
        for index, send in self._sends[turn]:
            send(parts[index])
        away = {index: receive() for index, receive in self._receives[turn].items()}
        found = {index: CopyGrads(part[0], part[1], is_ours=False) for index, part in parts.items()}
        found |= {index: CopyGrads(part[0], part[1], is_ours=True) for index, part in away.items()}
        self._parts = [found[index] for index in sorted(found)]

    def laid_out(self, update: int) -> dict[int, Values]:
        """The gradients of each copy that is here, as they are sent."""
        return {index: _flat(holders, update) for index, holders in self._here.items()}

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


def _route(message: Message, source: int, destination: int) -> Route:
    return Route(message, source, destination, "the gradients", message.edge)


def _flat(holders: Sequence[Holder], update: int) -> tuple[Tensor, Tensor]:
    """All gradients as one tensor, zeros where there is none; and which are there."""
    weights = [weight for holder in holders for weight in holder.weights]
    grads = [grad for holder in holders for grad in holder.closed(update)]
    is_there = torch.tensor([grad is not None for grad in grads])
    flat = [
        (torch.zeros_like(weight) if grad is None else grad).flatten()
        for weight, grad in zip(weights, grads, strict=True)
    ]
    return torch.cat(flat).detach(), is_there


def _sum(parts: Sequence[CopyGrads]) -> tuple[Tensor, list[bool]]:
    """The sum of all copies in order, and which gradients any of them has.

    Written where no memory has to be found for it: into what came from elsewhere.
    """
    total, is_there, is_ours = parts[0]
    for one in parts[1:]:
        part, is_there = one.grads.to(total.device), is_there | one.is_there.cpu()
        if is_ours:
            total.add_(part)
        else:
            total = part.add_(total) if one.is_ours else total + part
        is_ours = True
    return total, is_there.tolist()


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

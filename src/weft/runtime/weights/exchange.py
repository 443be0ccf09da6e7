"""Gradients between the last backward and the update: summed over copies, clipped.

A stage has a copy on each pipe, and a tied weight one in each of its stages. Every copy gets the
sum over all of them, in the order of pipes and then of stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor, nn

from weft.ir.kinds import Direction
from weft.ir.program import Program
from weft.runtime.ranks.world import World
from weft.runtime.stage.stage import Stage
from weft.runtime.transport.message import Message, Receive, Route, Send, Unknown, Values
from weft.runtime.weights.ties import End

Parameters = Sequence[nn.Parameter]
Copies = Mapping[tuple[int, int], Stage]  # by (pipe, stage)


@dataclass(frozen=True, slots=True)
class Member:
    """One copy of some weights: where it is, and the weights if that is here."""

    device: int
    weights: Parameters | None


class Gradients:
    """The gradients of all stages, of which this process holds some."""

    def __init__(
        self,
        program: Program,
        stages: Sequence[nn.Module],
        copies: Copies,
        ties: Sequence[Sequence[End]],
        world: World,
    ) -> None:
        self._program, self._stages, self._copies, self._world = program, stages, copies, world
        self._repeated = {end for ends in ties for end in ends[1:]}
        self._exchanges: list[_Exchange] = []
        if len(program.placement.pipes) > 1:
            for stage in range(len(stages)):
                self._join([self._copy(pipe, stage) for pipe in self._pipes])
        for ends in ties:
            for pipe in self._pipes:
                self._join([self._copy(pipe, end.stage, end.name) for end in ends])

    @property
    def _pipes(self) -> range:
        return range(len(self._program.placement.pipes))

    def _copy(self, pipe: int, stage: int, name: str | None = None) -> Member:
        device = self._program.placement.pipes[pipe][stage]
        copy = self._copies.get((pipe, stage))
        if copy is None:
            return Member(device, None)
        module = copy.module
        return Member(
            device, [*module.parameters()] if name is None else [module.get_parameter(name)]
        )

    def _join(self, members: Sequence[Member]) -> None:
        self._exchanges.append(_Exchange(len(self._exchanges), members, self._world))

    def sum_copies(self) -> None:
        """Give every copy the sum over all of them."""
        for exchange in self._exchanges:
            exchange.run()

    def clip(self, most: float) -> Tensor:
        """Scale all gradients to a global norm of at most so much; the norm before.

        As torch does: the norm of the norms of all parameters, in model order, a tied one once.
        """
        norm: Tensor = torch.linalg.vector_norm(self._norms())
        if not torch.isfinite(norm):
            return norm
        share = torch.clamp(most / (norm + 1e-6), max=1.0)
        for stage in self._copies.values():
            for parameter in stage.module.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(share.to(parameter.device))
        return norm

    def _norms(self) -> Tensor:
        """The norm of every parameter that has a gradient, on whichever rank."""
        names = [
            (End(stage, name), weight.dtype)
            for stage, module in enumerate(self._stages)
            for name, weight in module.named_parameters()
        ]
        norms, is_there = torch.zeros(2, len(names), dtype=torch.float64)
        places = {end: place for place, (end, _) in enumerate(names)}
        for (pipe, stage), copy in self._copies.items():
            if pipe == 0:
                for end, norm in self._norms_of(stage, copy.module).items():
                    norms[places[end]], is_there[places[end]] = norm, 1
        shares = torch.stack([norms, is_there])
        everywhere = self._world.total(shares, "the norms of the gradients")
        dtype = reduce(torch.promote_types, (dtype for _, dtype in names))
        return everywhere[0][everywhere[1] != 0].to(dtype)

    def _norms_of(self, stage: int, module: nn.Module) -> dict[End, float]:
        """Those of one stage, fetched together; a tied weight counts at its first end."""
        found = {
            End(stage, name): torch.linalg.vector_norm(weight.grad)
            for name, weight in module.named_parameters()
            if weight.grad is not None and End(stage, name) not in self._repeated
        }
        norms = torch.stack([*found.values()]).tolist() if found else []
        return dict(zip(found, norms, strict=True))


class _Exchange:
    """Copies of the same weights, and the calls that pass gradients between them."""

    def __init__(self, number: int, members: Sequence[Member], world: World) -> None:
        self._members = members
        self._sends: list[tuple[int, Send]] = []
        self._receives: dict[int, Receive] = {}
        away = sorted({m.device for m in members if m.weights is None})
        if all(member.weights is None for member in members):
            return
        for index, member in enumerate(members):
            message = Message(number, Direction.BOTH, index)
            if member.weights is None:
                route = self._route(message, member.device, world.devices.start)
                self._receives[index] = world.transport.receiver(route, Unknown())
                continue
            for device in away:
                route = self._route(message, member.device, device)
                self._sends.append((index, world.transport.sender(route, Unknown())))

    def _route(self, message: Message, source: int, destination: int) -> Route:
        return Route(message, source, destination, "the gradients", message.edge)

    def run(self) -> None:
        """Pass gradients on, sum them in order, and give every copy here the sum."""
        parts: dict[int, Values] = {
            index: _flat(member.weights)
            for index, member in enumerate(self._members)
            if member.weights
        }
        if not parts:
            return
        for index, send in self._sends:
            send(parts[index])
        for index, receive in self._receives.items():
            parts[index] = receive()
        total, is_there = _sum([parts[index] for index in sorted(parts)])
        for member in self._members:
            if member.weights:
                _unflatten(member.weights, total, is_there)


def _flat(weights: Parameters) -> tuple[Tensor, Tensor]:
    """All gradients as one tensor, zeros where there is none; and which are there."""
    is_there = torch.tensor([weight.grad is not None for weight in weights])
    return torch.cat(
        [
            (torch.zeros_like(weight) if weight.grad is None else weight.grad).flatten()
            for weight in weights
        ]
    ), is_there


def _sum(parts: Sequence[Values]) -> tuple[Tensor, Tensor]:
    """The sum of all copies, and which gradients any of them has."""
    total, is_there = parts[0]
    assert total is not None  # they are sent whole
    assert is_there is not None
    for part, others in parts[1:]:
        assert part is not None
        assert others is not None
        total, is_there = total + part.to(total.device), is_there | others.cpu()
    return total, is_there


def _unflatten(weights: Parameters, total: Tensor, is_there: Tensor) -> None:
    sizes = [weight.numel() for weight in weights]
    for weight, part, has in zip(
        weights, torch.split(total, sizes), is_there.tolist(), strict=True
    ):
        weight.grad = part.to(weight).view_as(weight).clone() if has else None

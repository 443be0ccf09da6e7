"""Ranks alone: each runs its own actions in their order with no messages, all at once.

So the seconds of an action are found while all ranks work, and in the order of a run: what a stage
finds in the caches depends on what the device has done since. With them, and with messages that
take no time, the simulator says what the schedule needs at least.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from contenders import Samples, Setting, Turn, Work, meet
from torch import Tensor, nn

from weft.cost import Cost, Share, Times
from weft.ir.earliest import earliest
from weft.ir.kinds import Kind
from weft.ir.lanes import Lane
from weft.ir.program import Program
from weft.lower import unpaired
from weft.runtime.stage.randomness import Draw
from weft.runtime.stage.role import Role
from weft.runtime.stage.stage import Stage
from weft.runtime.stage.values import Value
from weft.simulate import simulate

Call: TypeAlias = Callable[[], object]
Timing: TypeAlias = Callable[[Sequence[Call]], list[float]]  # seconds of calls in their order

REPEATS = 16  # updates after which a run is as good as settled


def by_host(calls: Sequence[Call]) -> list[float]:
    """Seconds of calls that have ended when they return."""
    taken = []
    for call in calls:
        start = time.monotonic()
        call()
        taken.append(time.monotonic() - start)
    return taken


def by_events(calls: Sequence[Call]) -> list[float]:
    """Seconds of calls on the current stream of a GPU, which nobody waits for in between."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(calls) + 1)]
    marks[0].record()
    for call, mark in zip(calls, marks[1:], strict=True):
        call()
        mark.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in pairwise(marks)]


class Ending(nn.Module):
    """The last stage with its loss."""

    def __init__(self, stage: nn.Module, work: Work, target: Tensor) -> None:
        super().__init__()
        self.stage, self._loss, self._target = stage, work.loss, target

    def forward(self, value: Tensor) -> Tensor:
        return self._loss(self.stage(value), self._target)


class Loner:
    """A stage that nobody sends to: the same input for every microbatch, of which many may be
    in flight. Backwards run by plain autograd, or where they are divided by a stage of Weft."""

    def __init__(self, module: nn.Module, value: Tensor, *, is_first: bool) -> None:
        self._module, self._value = module, value
        self._is_first, self._given = is_first, Value.of(value, "the input")
        self._outputs: dict[int, Tensor] = {}
        self._gradient = torch.ones_like(module(value))
        # `.data` counts changes apart, so that a step leaves graphs in flight valid.
        self._twins = [nn.Parameter(weight.data) for weight in module.parameters()]
        self._optimizer = torch.optim.SGD(self._twins, lr=0.0)

    def call(self, kind: Kind, microbatch: int, *, is_divided: bool) -> Call:
        """What runs an action."""
        calls: dict[Kind, Call] = {
            Kind.F: partial(self._divided.forward, microbatch, [self._given], is_divided=True)
            if is_divided
            else partial(self._forward, microbatch),
            Kind.B: partial(self._backward, microbatch),
            Kind.I: lambda: self._divided.input_grad(microbatch, [self._gradient]),
            Kind.W: lambda: self._divided.weight_grad(microbatch),
            Kind.UPDATE: self._update,
        }
        return calls[kind]

    def clear(self) -> None:
        self._module.zero_grad(set_to_none=True)
        if "_divided" in vars(self):
            self._divided.module.zero_grad(set_to_none=True)

    @cached_property
    def _divided(self) -> Stage:
        """Only where it is used: a copy may take as much memory as the rest."""
        role = Role(index=0, is_first=self._is_first, is_split=True)
        return Stage(copy.deepcopy(self._module), Draw(), role)

    def _forward(self, microbatch: int) -> None:
        value = self._value.detach().requires_grad_(not self._is_first)
        self._outputs[microbatch] = self._module(value)

    def _backward(self, microbatch: int) -> None:
        self._outputs.pop(microbatch).backward(self._gradient)

    def _update(self) -> None:
        for weight, twin in zip(self._module.parameters(), self._twins, strict=True):
            twin.grad, weight.grad = weight.grad, None
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


def alone(setting: Setting, work: Work, timing: Timing = by_host) -> Turn:
    """A turn that finds the seconds of each action of this rank, while all ranks take it."""
    program, held = unpaired(setting.program), {}
    value, target = (part.chunk(setting.microbatches)[0] for part in (work.batch, work.target))
    for _, stage in program.placement.held[dist.get_rank()]:
        is_last = stage == program.stages - 1
        module = Ending(work.stage(stage), work, target) if is_last else work.stage(stage)
        held[stage] = Loner(module, value, is_first=not stage)
    actions = [*program.lane(program.lanes.index(Lane(dist.get_rank())))]
    divided = {(one.stage, one.microbatch) for one in actions if one.kind is Kind.I}
    calls = [
        held[one.stage].call(
            one.kind, one.microbatch, is_divided=(one.stage, one.microbatch) in divided
        )
        for one in actions
    ]

    def turn() -> list[float]:
        meet()
        taken = timing(calls)
        for loner in held.values():
            loner.clear()
        return taken

    return turn


# the ideal


def ideal_seconds(setting: Setting, by_rank: Sequence[Mapping[str, list[list[float]]]]) -> Samples:
    """For each round, what the schedule needs at least for a step; once settled, for an update.

    Messages take no time, and the two of a pair run one after the other, as they do on a CPU.
    """
    program = unpaired(setting.program)
    order = [lane.device for lane in program.lanes]
    least = _makespan if program.period is None else _settled
    by_round = zip(*(rank["alone"] for rank in by_rank), strict=True)
    return np.array(
        [least(program, np.concatenate([lanes[d] for d in order])) for lanes in by_round]
    )


def _makespan(program: Program, durations: Samples) -> float:
    precedence = program.precedence(np.zeros(len(program.dependencies)))
    return float((earliest(precedence, durations) + durations).max())


def _settled(program: Program, durations: Samples) -> float:
    """By the mean of each stage: what was measured has a beginning and an end."""
    kind, stage = program.actions.kind, program.actions.stage

    def means(which: Kind) -> tuple[float, ...]:
        return tuple(
            float(durations[(kind == which) & (stage == one)].mean())
            for one in range(program.stages)
        )

    forward, update = means(Kind.F), means(Kind.UPDATE)
    half = tuple(seconds / 2 for seconds in means(Kind.B))
    times = Times(forward, half, half, forward, update, reduce=(0.0,) * program.stages)
    return period(program, replace(Share().cost(program), times=times))


def period(program: Program, cost: Cost) -> float:
    """Seconds per update of an asynchronous program, once it has settled."""
    assert program.period is not None
    few, many = (simulate(program.unrolled(n), cost).makespan for n in (REPEATS, 2 * REPEATS))
    return (many - few) / (REPEATS * program.period.versions)

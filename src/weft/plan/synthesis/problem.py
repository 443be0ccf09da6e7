"""The problem that synthesis solves: stages on devices, their times, how much each holds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from weft.cost import Cost, Link, Memory, Network, PerStage, Times
from weft.cost.checks import quoted
from weft.errors import InputError
from weft.ir.actions import Action
from weft.ir.kinds import Kind
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.ir.values import Value

MOST_ACTIONS = 1_000_000
NEARLY = 1e-9  # of a cap: sums of thirds may miss it by as much


class Delays(NamedTuple):
    """What a value takes from each stage to the next, and its gradient back."""

    there: PerStage
    back: PerStage


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Which order of F, I and W ends soonest, with no device above its cap?

    forward, input_grad, weight_grad   seconds of each stage for one microbatch
    latency   from device to device, of every value or of each; within a device it takes none
    held      what a microbatch of each stage counts towards the cap of its device, from the start
              of its F to the end of its W: shares of a device, or bytes
    caps      the most that each device may hold
    overhead  seconds that a device needs between an action and the next one
    known     the cost that all this is taken from, if there is one
    """

    placement: Placement
    microbatches: int
    forward: PerStage
    input_grad: PerStage
    weight_grad: PerStage
    held: PerStage
    caps: tuple[float, ...]
    latency: float | Delays = 0.0
    overhead: float = 0.0
    known: Cost | None = None

    @classmethod
    def from_cost(
        cls,
        cost: Cost,
        placement: Placement,
        microbatches: int,
        caps: tuple[float, ...],
        held: PerStage | None = None,
    ) -> Problem:
        """The problem of a cost; without `held`, caps are in bytes that forwards save."""
        if any(size != 1 for size in cost.sizes):
            raise InputError("synthesis takes microbatches of one size; leave out the cost's sizes")
        one = replace(cost, sizes=())
        forward, input_grad, weight_grad = _times(one, placement)
        return cls(
            placement=placement,
            microbatches=microbatches,
            forward=forward,
            input_grad=input_grad,
            weight_grad=weight_grad,
            held=cost.memory.saved if held is None else held,
            caps=caps,
            latency=_delays(one, placement),
            overhead=cost.overhead,
            known=one,
        )

    def __post_init__(self) -> None:
        _check_numbers(self)
        _check_shape(self)
        _check_caps(self)

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return self.placement.devices

    @property
    def stages(self) -> int:
        """How many stages a pipe has."""
        return self.placement.stages

    @cached_property
    def stages_of(self) -> tuple[tuple[int, ...], ...]:
        """The stages of each device, in model order."""
        return tuple(tuple(stage for _, stage in held) for held in self.placement.held)

    @cached_property
    def least(self) -> tuple[float, ...]:
        """The smallest cap of each device: all that one microbatch leaves there."""
        return tuple(sum(self.held[stage] for stage in stages) for stages in self.stages_of)

    @cached_property
    def delays(self) -> Delays:
        """Of every edge; none where both its stages are on one device."""
        if isinstance(self.latency, Delays):
            return self.latency
        devices = self.placement.pipes[0]
        is_apart = [a != b for a, b in pairwise(devices)]
        each = tuple(self.latency if apart else 0.0 for apart in is_apart)
        return Delays(each, each)

    @cached_property
    def cost(self) -> Cost:
        """What the simulator times programs of this problem by."""
        if self.known is not None:
            return self.known
        zeros = (0.0,) * self.stages
        network = Network(message=0.0)
        if isinstance(self.latency, Delays):
            network = replace(network, between=_links(self))
        else:
            network = replace(network, default=Link(latency=self.latency))
        return Cost(
            times=Times(
                forward=self.forward,
                input_grad=self.input_grad,
                weight_grad=self.weight_grad,
                recompute=self.forward,
                update=zeros,
                reduce=zeros,
            ),
            memory=Memory(
                weights=zeros, gradients=zeros, optimizer=zeros, saved=self.held, inputs=zeros
            ),
            network=network,
            overhead=self.overhead,
        )

    def fits(self, device: int, amount: float) -> bool:
        """Whether a device may hold as much."""
        return amount <= self.caps[device] * (1 + NEARLY)


def _links(problem: Problem) -> dict[tuple[int, int], Link]:
    """A link for each edge; InputError where two edges between the same devices differ."""
    assert isinstance(problem.latency, Delays)
    devices = problem.placement.pipes[0]
    links: dict[tuple[int, int], Link] = {}
    for stage in range(problem.stages - 1):
        ends = devices[stage], devices[stage + 1]
        for pair, delay in ((ends, problem.latency.there), (ends[::-1], problem.latency.back)):
            link = Link(latency=delay[stage])
            if links.setdefault(pair, link) != link:
                raise InputError(
                    f"two edges from device {pair[0]} to {pair[1]} have different latencies;"
                    " give a cost instead, with bytes of each edge"
                )
    return links


def one_microbatch(placement: Placement) -> Program:
    """One microbatch, there and back: all kinds of actions and edges once."""
    stages = range(placement.stages)
    lanes: list[list[Action]] = [[] for _ in range(placement.devices)]
    for stage in stages:
        lanes[placement.pipes[0][stage]].append(Action(stage, Kind.F, 0))
    for stage in reversed(stages):
        lane = lanes[placement.pipes[0][stage]]
        lane += [Action(stage, Kind.I, 0), Action(stage, Kind.W, 0)]
    return Program.build("one microbatch", placement, lanes, microbatches=1)


def _times(cost: Cost, placement: Placement) -> tuple[PerStage, PerStage, PerStage]:
    program = one_microbatch(placement)
    seconds, actions = cost.durations(program), program.actions
    found = []
    for kind in (Kind.F, Kind.I, Kind.W):
        rows = np.flatnonzero(actions.kind == kind)
        found.append(tuple(seconds[rows[np.argsort(actions.stage[rows])]].tolist()))
    return found[0], found[1], found[2]


def _delays(cost: Cost, placement: Placement) -> Delays:
    program = one_microbatch(placement)
    dependencies, seconds = program.dependencies, cost.delays(program)
    found = []
    for value in (Value.ACTIVATION, Value.GRADIENT):
        rows = np.flatnonzero(dependencies.value == value)
        each = np.zeros(len(program.graph.edges))
        each[dependencies.edge[rows]] = seconds[rows]
        found.append(tuple(each.tolist()))
    return Delays(*found)


# what is refused


def check_size(stages: int, microbatches: int) -> None:
    """Refuse what would take hours."""
    actions = len((Kind.F, Kind.I, Kind.W)) * stages * microbatches
    if actions > MOST_ACTIONS:
        raise InputError(
            f"{stages:,} stages and {microbatches:,} microbatches make {actions:,} actions;"
            f" synthesis takes {MOST_ACTIONS:,}. Ask for fewer of either."
        )


def _check_numbers(problem: Problem) -> None:
    amounts = {
        "forward": problem.forward,
        "input_grad": problem.input_grad,
        "weight_grad": problem.weight_grad,
        "held": problem.held,
        "caps": problem.caps,
        "latency": (*problem.delays.there, *problem.delays.back),
        "overhead": (problem.overhead,),
    }
    for name, numbers in amounts.items():
        for number in numbers:
            if not 0 <= number < math.inf:
                raise InputError(f"{name}: {quoted(number)} is not a finite number from 0 up")
    if not any((*problem.forward, *problem.input_grad, *problem.weight_grad)):
        raise InputError("no stage takes any time, so that every order ends at once")


def _check_shape(problem: Problem) -> None:
    if len(problem.placement.pipes) != 1:
        raise InputError(
            f"synthesis orders one pipe; this placement has {len(problem.placement.pipes)}"
        )
    if problem.microbatches < 1:
        raise InputError(f"microbatches must be at least 1, not {problem.microbatches!r}")
    check_size(problem.stages, problem.microbatches)
    for name in ("forward", "input_grad", "weight_grad", "held"):
        _check_length(name, len(getattr(problem, name)), problem.stages, "stages")
    _check_length("caps", len(problem.caps), problem.devices, "devices")
    for each in problem.delays:
        _check_length("latency", len(each), problem.stages - 1, "edges")


def _check_length(name: str, found: int, wanted: int, words: str) -> None:
    if found != wanted:
        raise InputError(f"{name} has {found} numbers, and there are {wanted} {words}")


def _check_caps(problem: Problem) -> None:
    """One microbatch leaves something on every device at once, whatever the order."""
    for device, least in enumerate(problem.least):
        if not problem.fits(device, least):
            raise InputError(
                f"a cap of {problem.caps[device]:g} on device {device} is below the smallest"
                f" possible, {least:g}: what one microbatch leaves there until its last W"
            )

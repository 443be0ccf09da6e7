"""Orders that no schedule has, as schedules: made by synthesis for a cut and its times.

With them a search and a frontier treat what was synthesised like everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from weft.draw.caption import percent
from weft.errors import InputError, ProgramError
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.plan.bench import Bench
from weft.plan.chain import Chain, Layers, Values
from weft.plan.partition import balanced
from weft.plan.space import Candidate, Division
from weft.plan.synthesis import Effort, Problem, Synthesis, one_microbatch, synthesize
from weft.plan.trial import Ease, Trial, Trier
from weft.schedules import Claims, Schedule, Shape

NAME = "synthesised"
MOST_ACTIONS = 6_000  # of an order: more take many seconds
HEURISTIC = Effort(exact=0)  # which takes a second where the rest takes a minute
WORK = 20  # an action of synthesis counts for as many of a simulation

Caps: TypeAlias = tuple[float, ...]  # bytes of each device


@dataclass(frozen=True)
class Order:
    """What an order is made for."""

    chain: Chain
    placement: Placement
    layers: Layers

    @property
    def state(self) -> list[float]:
        """What each device holds throughout."""
        sums = self.chain.sums(self.layers)
        each: Values = sums.state + sums.optimizer
        return [float(sum(each[stage] for _, stage in held)) for held in self.placement.held]

    @property
    def least(self) -> float:
        """The least bytes of every device with which there is an order."""
        saved = self.chain.sums(self.layers).saved
        kept = [sum(saved[stage] for _, stage in held) for held in self.placement.held]
        return float(max(state + one for state, one in zip(self.state, kept, strict=True)))

    def synthesis(self, microbatches: int, budget: float, effort: Effort = HEURISTIC) -> Synthesis:
        """The best order in which no device holds more than a budget of bytes."""
        cost = self.chain.cost(one_microbatch(self.placement), self.layers)
        caps = tuple(budget - state for state in self.state)
        return synthesize(Problem.from_cost(cost, self.placement, microbatches, caps), effort)


def placements(division: Division, blocks: int) -> Iterator[Placement]:
    """Those that orders are made for: a stage on each device, or two in a V."""
    yield Placement.straight(division.devices)
    if 2 * division.devices <= blocks:
        yield Placement.wave(division.devices)


def synthesised(
    bench: Bench, division: Division, placement: Placement, ease: Ease, budget: float
) -> Trial | None:
    """The best order within a budget of bytes, tried in full; None where none is found."""
    chain = bench.chain(division, is_selective=ease.is_selective)
    try:
        order = Order(chain, placement, balanced(chain, placement.stages))
        if order.least > budget or _actions(division, placement) > MOST_ACTIONS:
            return None
        found = order.synthesis(division.microbatches, budget)
    except (InputError, ProgramError):
        return None
    bench.actions += WORK * len(found.program)
    candidate = _candidate(division, placement, found)
    return Trier(bench, candidate, is_full=True).tried(order.layers, ease)


def _actions(division: Division, placement: Placement) -> int:
    return 3 * placement.stages * division.microbatches


def _candidate(division: Division, placement: Placement, found: Synthesis) -> Candidate:
    """The order as that of a schedule; its name says how good it is known to be."""
    stages = placement.stages // placement.devices
    shape = Shape(
        devices=division.devices, microbatches=division.microbatches, stages_per_device=stages
    )
    return Candidate(division, _schedule(found.program, found, stages), shape)


def _schedule(program: Program, found: Synthesis, stages: int) -> Schedule:
    def claimed(shape: Shape, device: int) -> float:
        return float(shape.microbatches)

    return Schedule(
        name=NAME,
        summary=f"{found.method}; {percent(found.gap)} above its bound",
        paper="",
        claims=Claims(formula="", seconds=lambda shape, share: 0.0, peak=claimed, peak_formula=""),
        generate=lambda shape: program,
        stages_per_device=(stages, stages),
    )

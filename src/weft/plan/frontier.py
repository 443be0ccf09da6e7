"""The frontier: time against memory, of every schedule and of what synthesis makes between them.

On one division of the cluster and the batch; without relief, so that points differ by their order
alone. A point becomes a plan, with its timeline, when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from weft.draw.scatter import Dot, Scatter
from weft.errors import InputError, ProgramError
from weft.plan.bench import Bench
from weft.plan.orders import Order, placements, synthesised
from weft.plan.partition import balanced
from weft.plan.proposal import Proposal, proposed
from weft.plan.question import Question
from weft.plan.search import search
from weft.plan.space import Division, Space
from weft.plan.trial import Ease, Trial, Trier
from weft.plan.undivided import undivided
from weft.request import Plan, Request

BUDGETS = 10  # of the line
SCHEDULE, SYNTHESISED = "schedule", "synthesised"


@dataclass(frozen=True)
class FrontierPoint:
    """A program at its time and memory.

    title       what it is, with its stages on each device: zbv x 2
    kind        "schedule" or "synthesised"
    is_fitting  whether every device has as much memory
    """

    seconds: float
    bytes: float
    title: str
    kind: str
    is_fitting: bool
    proposal: Proposal

    @cached_property
    def plan(self) -> Plan:
        """The plan, which is a file, a picture and a run."""
        return self.proposal.plan

    @property
    def request(self) -> Request:
        """What is timed, drawn and explained."""
        return self.plan.request


@dataclass(frozen=True)
class Frontier:
    """All points of a division, those of schedules first, then the line by its memory."""

    division: Division
    capacity: float
    points: tuple[FrontierPoint, ...]

    @property
    def schedules(self) -> tuple[FrontierPoint, ...]:
        """The points of schedules."""
        return tuple(point for point in self.points if point.kind == SCHEDULE)

    @property
    def line(self) -> tuple[FrontierPoint, ...]:
        """The points of synthesised orders, the leanest first."""
        return tuple(point for point in self.points if point.kind == SYNTHESISED)

    def scatter(self, title: str) -> Scatter:
        """The picture of it."""
        dots = (
            Dot(point.seconds, point.bytes, point.title, point.kind == SYNTHESISED)
            for point in self.points
        )
        return Scatter(title, tuple(dots), self.capacity)


def frontier(
    question: Question,
    division: Division | None = None,
    *,
    budgets: int = BUDGETS,
    watch: Callable[[FrontierPoint], None] = lambda point: None,
) -> Frontier:
    """The points of a division, or of that of the best plan; `watch` gets each as it is found."""
    division = division or _best(question)
    bench = Bench(question)
    points: list[FrontierPoint] = []
    for found in (_schedules(bench, division), _line(bench, division, budgets)):
        for point in found:
            points.append(point)
            watch(point)
    return Frontier(division, bench.chain(division).blocks.memory.capacity, tuple(points))


def _best(question: Question) -> Division:
    """That of the best plan; where nothing fits, the deepest pipeline."""
    found = search(question)
    if found.proposals:
        return found.proposals[0].trial.candidate.division
    every = [*Space(question).divisions]
    if not every:
        raise InputError(undivided(question))
    return max(every, key=lambda one: (one.devices, one.microbatches))


def _schedules(bench: Bench, division: Division) -> Iterator[FrontierPoint]:
    """A point for every schedule, variant and number of stages; twins once."""
    seen = set()
    for candidate in Space(bench.question).on(division):
        trier = Trier(bench, candidate, is_full=True)
        try:
            trial = trier.tried(trier.seed, Ease())
        except (InputError, ProgramError):
            continue  # a variant that has no order for this shape
        key = (candidate.schedule.name, *trial.order)
        if key not in seen:
            seen.add(key)
            yield _point(bench, trial, SCHEDULE)


def _line(bench: Bench, division: Division, budgets: int) -> Iterator[FrontierPoint]:
    """The best order for each budget of memory, where it is faster than with less."""
    fastest = float("inf")
    for budget in _budgets(bench, division, budgets):
        found = [
            trial
            for placement in placements(division, Space(bench.question).blocks)
            if (trial := synthesised(bench, division, placement, Ease(), budget)) is not None
        ]
        best = min(found, key=lambda trial: trial.order, default=None)
        if best is not None and best.seconds < fastest * (1 - 1e-9):
            fastest = best.seconds
            yield _point(bench, best, SYNTHESISED)


def _budgets(bench: Bench, division: Division, count: int) -> list[float]:
    """From the least with which there is an order to what a pipe full of microbatches needs."""
    chain = bench.chain(division)
    lowest, highest = float("inf"), 0.0
    for placement in placements(division, Space(bench.question).blocks):
        order = Order(chain, placement, balanced(chain, placement.stages))
        lowest = min(lowest, order.least)
        each = sum(chain.blocks.memory.saved) / division.devices
        highest = max(highest, max(order.state) + (division.devices + 1) * each)
    return [float(one) for one in np.geomspace(lowest, max(lowest, highest), count)]


def _point(bench: Bench, trial: Trial, kind: str) -> FrontierPoint:
    stages = trial.candidate.shape.stages_per_device
    loops = f" x {stages}" if stages > 1 else ""
    return FrontierPoint(
        seconds=trial.seconds,
        bytes=trial.peak,
        title=f"{trial.candidate.title}{loops}",
        kind=kind,
        is_fitting=trial.peak <= bench.chain(trial.candidate.division).blocks.memory.capacity,
        proposal=proposed(bench, trial),
    )

"""Seeds: schedules to begin with, from rules and from the registry."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from weft.errors import WeftError
from weft.ir.program import Program
from weft.lower import split, unpaired
from weft.plan.synthesis.constraints import Constraints, Starts
from weft.plan.synthesis.greedy import Rule, listed
from weft.plan.synthesis.lanes import starts_of
from weft.plan.synthesis.problem import Problem
from weft.schedules import REGISTRY, Schedule, Shape

NEVER = 1 << 30


class Seed(NamedTuple):
    """A schedule to begin with, and what it is."""

    starts: Starts
    method: str


def seeds(problem: Problem, tied: Constraints) -> Iterator[Seed]:
    """List schedules and what the registry has for this placement, within the caps."""
    for rule in _rules(problem, tied):
        yield Seed(listed(problem, tied, rule), "list schedule")
    for schedule in REGISTRY:
        if not schedule.is_asynchronous:
            yield from _of_schedule(problem, tied, schedule)


def _rules(problem: Problem, tied: Constraints) -> Iterator[Rule]:
    devices = problem.devices
    shortest = min(time for time in tied.duration if time)
    for patience in (0.0, shortest):
        for pending in (NEVER, 1):
            yield Rule(problem.caps, (pending,) * devices, patience)


def changed_rules(problem: Problem, tied: Constraints, trials: int) -> Iterator[Rule]:
    """Rules for local search: devices that hold less than they may, or run their W sooner."""
    random = Random(0)
    for _ in range(trials):
        caps, pending = [*problem.caps], [NEVER] * problem.devices
        first, last = sorted(random.choices(range(problem.devices + 1), k=2))
        for device in range(first, last):
            least, cap = problem.least[device], problem.caps[device]
            caps[device] = max(least, cap - random.randint(0, 2) * least)
            pending[device] = random.choice((1, 2, 3, NEVER))
        patience = random.choice((0.0, 0.5, 1.0)) * min(time for time in tied.duration if time)
        yield Rule(tuple(caps), tuple(pending), patience)


def _of_schedule(problem: Problem, tied: Constraints, schedule: Schedule) -> Iterator[Seed]:
    for variant in ("", *schedule.variants):
        shape = Shape(
            devices=problem.devices,
            microbatches=problem.microbatches,
            stages_per_device=max(1, problem.stages // problem.devices),
            variant=variant,
        )
        if schedule.accepts(shape) is None:
            starts = _starts(problem, tied, schedule, shape)
            if starts is not None:
                yield Seed(starts, schedule.name)


def _starts(problem: Problem, tied: Constraints, schedule: Schedule, shape: Shape) -> Starts | None:
    try:
        program: Program = split(unpaired(schedule.program(shape)))
    except WeftError:
        return None
    return starts_of(problem, tied, program)

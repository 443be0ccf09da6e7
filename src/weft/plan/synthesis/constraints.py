"""Constraints: every action of a problem with what ties it to a time, in plain lists.

Actions are numbered kind by kind (F, I, W), then stage by stage, then by microbatch. Times are
whole numbers of a unit where the problem has one; else they are as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import TypeAlias, TypeVar

from weft.ir.kinds import Kind
from weft.plan.synthesis.problem import NEARLY, Problem

KINDS = (Kind.F, Kind.I, Kind.W)
FINEST = 400  # units of the shortest action at most
COARSE = 100  # of it where no unit divides all times

Item = TypeVar("Item")

Starts: TypeAlias = list[float]
Reads: TypeAlias = tuple[tuple[int, float], ...]  # actions, and how long their values travel


@dataclass(frozen=True, slots=True)
class Constraints:
    """What an order must respect.

    unit     seconds of a time of 1
    holds    what an action takes at its start or, where negative, gives back at its end
    caps     the most that each device may hold, with some room for sums of fractions
    rank     how far an action is down the chain: it reads only what has a lower one
    is_exact whether all times are whole numbers
    """

    unit: float
    stages: int
    microbatches: int
    duration: list[float]
    device: list[int]
    reads: list[Reads]
    readers: list[Reads]
    holds: list[float]
    caps: list[float]
    rank: list[int]
    is_exact: bool

    def __len__(self) -> int:
        return len(self.duration)

    def mirrored(self) -> Constraints:
        """The same with time running backwards."""
        return Constraints(
            self.unit,
            self.stages,
            self.microbatches,
            self.duration,
            self.device,
            self.readers,
            self.reads,
            [-amount for amount in self.holds],
            self.caps,
            [-rank for rank in self.rank],
            self.is_exact,
        )

    def length(self, starts: Starts) -> float:
        """When the last action ends."""
        return max(map(float.__add__, starts, self.duration))


def constraints(problem: Problem) -> Constraints:
    """Of all actions, in the problem's own unit."""
    unit = exact_unit(problem)
    return _made(problem, unit or 1.0, is_rounded=unit is not None)


def rounded_down(problem: Problem, unit: float | None = None) -> Constraints:
    """The same in whole numbers: where the unit does not divide a time, that gets shorter."""
    unit = unit or exact_unit(problem) or _shortest(problem) / COARSE
    return _made(problem, unit, is_rounded=True)


def exact_unit(problem: Problem) -> float | None:
    """What divides all times, if it is not too small."""
    shortest = _shortest(problem)
    parts = 1
    for time in _times(problem):
        ratio = Fraction(time / shortest).limit_denominator(FINEST)
        parts = lcm(parts, ratio.denominator)
        if parts > FINEST or abs(float(ratio) - time / shortest) > NEARLY * max(1.0, float(ratio)):
            return None
    return shortest / parts


def _times(problem: Problem) -> set[float]:
    delays, overhead = problem.delays, problem.overhead
    actions = (*problem.forward, *problem.input_grad, *problem.weight_grad)
    return {*actions, *delays.there, *delays.back, overhead}


def _shortest(problem: Problem) -> float:
    actions = (*problem.forward, *problem.input_grad, *problem.weight_grad)
    return min(time for time in actions if time > 0)


def _made(problem: Problem, unit: float, *, is_rounded: bool) -> Constraints:
    is_exact = exact_unit(problem) is not None
    stages, microbatches = problem.stages, problem.microbatches

    def units(time: float) -> float:
        if not is_rounded:
            return time / unit
        return float(round(time / unit) if is_exact else int(time / unit))

    overhead = units(problem.overhead)
    by_row = [
        units(time) + overhead
        for times in (problem.forward, problem.input_grad, problem.weight_grad)
        for time in times
    ]
    there = [units(delay) - overhead for delay in problem.delays.there]
    back = [units(delay) - overhead for delay in problem.delays.back]
    reads = _reads(stages, microbatches, there, back)
    readers: list[list[tuple[int, float]]] = [[] for _ in reads]
    for action, read in enumerate(reads):
        for other, delay in read:
            readers[other].append((action, delay))
    held = [*problem.held, *(0.0,) * stages, *(-amount for amount in problem.held)]
    places = problem.placement.pipes[0] * len(KINDS)
    ranks = [*range(stages), *range(2 * stages, stages, -1), *(2 * stages + 1,) * stages]
    return Constraints(
        unit=unit,
        stages=stages,
        microbatches=microbatches,
        duration=_spread(by_row, microbatches),
        device=_spread(places, microbatches),
        reads=reads,
        readers=[tuple(found) for found in readers],
        holds=_spread(held, microbatches),
        caps=[cap * (1 + NEARLY) for cap in problem.caps],
        rank=_spread(ranks, microbatches),
        is_exact=is_exact,
    )


def _spread(by_row: Sequence[Item], microbatches: int) -> list[Item]:
    """One for each microbatch of a stage and kind."""
    return [item for item in by_row for _ in range(microbatches)]


def _reads(stages: int, microbatches: int, there: list[float], back: list[float]) -> list[Reads]:
    """Down the chain, up again, and each W after its I."""
    rows: list[tuple[int, float] | None] = [None]
    rows += [(stage, there[stage]) for stage in range(stages - 1)]
    rows += [(stages + stage + 1, back[stage]) for stage in range(stages - 1)]
    rows += [(stages - 1, 0.0)]
    rows += [(stages + stage, 0.0) for stage in range(stages)]
    return [
        () if row is None else ((row[0] * microbatches + microbatch, row[1]),)
        for row in rows
        for microbatch in range(microbatches)
    ]

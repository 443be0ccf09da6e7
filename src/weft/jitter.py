"""Jitter: how much longer a step takes on average if no two runs of an action last as long.

Who waits for several others waits for the slowest of them, so that a step of varying durations is
longer than one of their means, in some schedules more than in others. Every action is drawn by
itself here: what slows down a device for long, or all of them at once, is another matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import asinh, expm1, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.cost import Cost
from weft.cost.measurement import Average
from weft.errors import InputError
from weft.ir.earliest import Seconds
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.ir.side_by_side import earliest_of_each
from weft.simulate import repetitions, simulate

DRAWS = 100
MOST_NUMBERS = 20_000_000  # durations that are drawn
SEED = 0
OPENING, REPEATS = 16, 48  # of a program that repeats: what does not count, and all
WITHIN = (0.025, 0.975)
QUARTILE = NormalDist().inv_cdf(0.75)

__all__ = ["Jittered", "Variation", "jittered"]

KINDS = {
    "forward": Kind.F,
    "input_grad": Kind.I,
    "weight_grad": Kind.W,
    "backward": Kind.B,
    "recompute": Kind.R,
    "update": Kind.UPDATE,
    "reduce": Kind.REDUCE,
    "gather": Kind.GATHER,
}
LIKE = {Kind.I: Kind.B, Kind.W: Kind.B, Kind.B: Kind.I, Kind.R: Kind.F}  # where one is not known


@dataclass(frozen=True, slots=True)
class Variation:
    """Standard deviations of durations relative to their means, by stage; of other kinds, none.

    is_of_medians  whether the cost has medians: means are longer, as long durations are
                   further away from them than short ones
    """

    by_kind: Mapping[Kind, tuple[float, ...]]
    is_of_medians: bool = False

    @classmethod
    def even(cls, relative: float, stages: int) -> Variation:
        """Of all actions alike."""
        return cls(dict.fromkeys(Kind, (relative,) * stages))

    @classmethod
    def measured(cls, cost: Cost) -> Variation:
        """What a profile has found; InputError where the cost is not from one.

        Profiles know interquartile ranges over medians, which outliers do not change.
        """
        measurement = cost.measurement
        if measurement is None or not measurement.spread:
            raise InputError(
                "the cost does not say how much times vary, as that of `weft profile` does; give a"
                " fraction, like 0.05"
            )
        known = {
            KINDS[name]: tuple(map(_relative, spread))
            for name, spread in measurement.spread.items()
            if name in KINDS
        }
        alike = {kind: known[other] for kind, other in LIKE.items() if other in known}
        return cls(alike | known, is_of_medians=measurement.average is Average.MEDIAN)


class Jittered(NamedTuple):
    """How many times as long a step takes as without jitter: on average, and 95 % of all.

    Of a program that repeats: an update once it has settled, on average over some of them.
    """

    mean: float
    low: float
    high: float
    draws: int


def jittered(
    program: Program, cost: Cost, variation: Variation | float, *, draws: int | None = None
) -> Jittered:
    """Steps in which durations vary about those of the cost, the same in every call.

    Durations are drawn from log-normal distributions. A number is the standard deviation of all of
    them, relative to their means.
    """
    if not isinstance(variation, Variation):
        variation = Variation.even(variation, program.stages)
    _check(variation, program.stages)
    repeated = program if program.period is None else program.unrolled(REPEATS)
    draws = draws or max(2, min(DRAWS, MOST_NUMBERS // max(1, len(repeated))))
    timeline = simulate(repeated, cost)
    still = _seconds(program, repeated, timeline.start[:, None], timeline.end[:, None])
    varied = _seconds(
        program, repeated, *_drawn(repeated, cost, _factors(repeated, variation, draws))
    )
    ratios = varied / still if still.all() else np.ones(draws)
    low, high = np.quantile(ratios, WITHIN).tolist()
    return Jittered(float(ratios.mean()), low, high, draws)


def _check(variation: Variation, stages: int) -> None:
    for kind, by_stage in variation.by_kind.items():
        if len(by_stage) != stages or not all(0 <= one < np.inf for one in by_stage):
            raise InputError(
                f"durations of {kind.name} vary by a fraction from 0 up for each of {stages}"
                f" stages, not by {by_stage}"
            )


def _factors(program: Program, variation: Variation, draws: int) -> NDArray[np.float64]:
    """For each slot and draw, how many times as long it lasts as the cost says."""
    relative = np.zeros((len(Kind), program.stages))
    for kind, by_stage in variation.by_kind.items():
        relative[kind] = by_stage
    first = program.first_of_slot
    places = program.actions.kind[first], program.actions.stage[first]
    sigma = np.sqrt(np.log1p(np.square(relative)))[places][:, None]
    normal = np.random.default_rng(SEED).standard_normal((len(first), draws))
    middle = 0.0 if variation.is_of_medians else -sigma * sigma / 2
    return np.asarray(np.exp(sigma * normal + middle))


def _drawn(program: Program, cost: Cost, factors: Seconds) -> tuple[Seconds, Seconds]:
    """Start and end of every action in every draw."""
    gaps, slots = cost.gaps(program), program.slot_of
    durations = cost.durations(program)[:, None] * factors
    precedence = program.precedence(cost.delays(program)).with_gaps(gaps)
    starts = earliest_of_each(precedence, durations + gaps[:, None])
    return starts[slots], (starts + durations)[slots]


def _seconds(program: Program, repeated: Program, starts: Seconds, ends: Seconds) -> Seconds:
    """How long each draw takes; of what repeats, a repetition once it has settled."""
    if program.period is None:
        return np.asarray(ends.max(axis=0, initial=0.0))
    lanes = repetitions(program, repeated, starts, REPEATS)
    mean = np.mean([lane.mean(axis=1) for lane in lanes if lane.shape[1]], axis=0)
    return np.asarray((mean[-1] - mean[OPENING]) / (REPEATS - 1 - OPENING))


def _relative(spread: float) -> float:
    """The standard deviation relative to the mean, by an interquartile range over the median."""
    sigma = asinh(spread / 2) / QUARTILE
    return sqrt(expm1(sigma * sigma))

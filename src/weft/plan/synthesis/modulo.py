"""Periods made greedily: the chain of each microbatch laid around a circle of time.

    device 0   F0 .. I1 W1 F1 .. I0 W0 |     each device has a circle as long as the period;
    device 1   W0 F0 .. I1 W1 F1 .. I0 |     an action takes the first place on it that is free
                                             and leaves room for what is still to come

Long runs go by such periods, and they need no solver: many lengths, numbers of microbatches and
times at which these enter are tried, and the best are unrolled and squeezed.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from math import ceil
from random import Random

from weft.plan.synthesis.constraints import Constraints
from weft.plan.synthesis.period import Period, least_rate
from weft.plan.synthesis.problem import Problem

TOGETHER = (1, 2, 4, 6)  # microbatches in a period
STEPS, STEP = 50, 0.005  # rates above the least that are tried
ENTRIES = 6  # times of entry for each of them
BEYOND = 4  # further steps after the first that works
BEST = 3  # of each number of microbatches
SLIGHT = 1e-9


def laid_periods(problem: Problem, tied: Constraints, placements: int) -> list[Period]:
    """Periods that fit: of each number of microbatches the best, for this many placements."""
    found: list[Period] = []
    for together in TOGETHER:
        if together <= problem.microbatches:
            of_size = _of_size(problem, tied, together, placements // len(TOGETHER))
            found += sorted(of_size, key=lambda period: period.time(tied))[:BEST]
    return sorted(found, key=lambda period: period.time(tied))


def _of_size(
    problem: Problem, tied: Constraints, together: int, placements: int
) -> Iterator[Period]:
    """From the shortest period on, until some of them have worked or all is used up."""
    least, random, beyond = least_rate(problem, tied) * together, Random(together), BEYOND
    tries = placements // (3 * problem.stages * together)
    for step in range(min(STEPS, tries // ENTRIES)):
        length = least * (1 + STEP * step)
        length = float(ceil(length - SLIGHT)) if tied.is_exact else length
        works = False
        for entries in _entries(length, together, random):
            period = laid(problem, tied, length, entries)
            if period is not None and period.fits(problem, tied):
                works = True
                yield period
        beyond -= works
        if not beyond:
            return


def _entries(length: float, together: int, random: Random) -> Iterator[list[float]]:
    """Times at which the microbatches of a period enter: evenly, and at random."""
    yield [float(int(length * index / together)) for index in range(together)]
    for _ in range(ENTRIES - 1 if together > 1 else 0):
        yield [0.0, *sorted(float(int(length * random.random())) for _ in range(together - 1))]


def laid(
    problem: Problem, tied: Constraints, length: float, entries: Sequence[float]
) -> Period | None:
    """A period of this length for microbatches that enter then; None where one has no place."""
    count, stages = tied.microbatches, problem.stages
    sizes = tied.duration[::count]
    circles = [
        _Circle(length, [sizes[s + kind * stages] for s in own for kind in range(3)] * len(entries))
        for own in problem.stages_of
    ]
    starts: list[list[float]] = [[] for _ in sizes]
    down_and_up = [*range(stages), *range(2 * stages - 1, stages - 1, -1)]
    last = range(2 * stages, 3 * stages)
    for rows in (down_and_up, last):
        for index, entry in enumerate(entries):
            for row in rows:
                ready = entry
                for other, delay in tied.reads[row * count]:
                    before = other // count
                    ready = starts[before][index] + sizes[before] + delay
                place = circles[tied.device[row * count]].take(ready, sizes[row])
                if place is None:
                    return None
                starts[row].append(place)
    return Period(length, len(entries), starts)


class _Circle:
    """What a device does within a period: busy stretches, and how long the rest will be."""

    def __init__(self, length: float, left: list[float]) -> None:
        self.length = length
        self.left = sorted(left, reverse=True)
        self.busy: list[tuple[float, float]] = []

    def take(self, time: float, size: float) -> float | None:
        """The first time from then on at which there is a place; it is busy then."""
        left = self.left.copy()
        left.remove(size)
        phase = time % self.length
        ends = {(end - phase) % self.length for _, end in self.busy}
        for wait in (0.0, *sorted(ends - {0.0})):
            place = (phase + wait) % self.length
            if self._is_free(place, size) and self._leaves_room(place, size, left):
                insort(self.busy, (place, place + size))
                self.left = left
                return time + wait
        return None

    def _is_free(self, place: float, size: float) -> bool:
        """Whether it overlaps nothing, also of the periods before and after."""
        end, length = place + size - SLIGHT, self.length
        for start, stop in self.busy:
            if start < end and place < stop - SLIGHT:
                return False
            if start + length < end or place < stop - length - SLIGHT:
                return False
        return True

    def _leaves_room(self, place: float, size: float, left: list[float]) -> bool:
        """Whether all that is still to come fits into the gaps: the longest first."""
        busy = sorted([*self.busy, (place, place + size)])
        following = [start for start, _ in busy[1:]] + [busy[0][0] + self.length]
        gaps = [start - end for start, (_, end) in zip(following, busy, strict=True)]
        for item in left:
            for index, gap in enumerate(gaps):
                if gap >= item - SLIGHT:
                    gaps[index] = gap - item
                    break
            else:
                return False
        return True

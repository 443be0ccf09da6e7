"""A period: starts of the actions of a few microbatches, which repeat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.plan.synthesis.constraints import Constraints, Starts
from weft.plan.synthesis.problem import NEARLY, Problem


@dataclass(frozen=True, slots=True)
class Period:
    """Starts of each row (kind and stage) of actions, for the microbatches of a period."""

    length: float
    together: int
    starts: list[list[float]]

    def unrolled(self, microbatches: int) -> Starts:
        """Starts of all actions, for this many microbatches."""
        return [
            row[microbatch % self.together] + self.length * (microbatch // self.together)
            for row in self.starts
            for microbatch in range(microbatches)
        ]

    def time(self, tied: Constraints) -> float:
        """How long all microbatches of a problem take by it."""
        last = max(
            start + tied.duration[row * tied.microbatches]
            for row, starts in enumerate(self.starts)
            for start in starts
        )
        return (tied.microbatches / self.together - 1) * self.length + last

    def fits(self, problem: Problem, tied: Constraints) -> bool:
        """Whether no device holds more than its cap, however often it repeats."""
        return all(
            problem.fits(device, max(self._levels(problem, tied, device)))
            for device in range(problem.devices)
        )

    def _levels(self, problem: Problem, tied: Constraints, device: int) -> Iterator[float]:
        """What a device holds after each change; at one time, what is given back comes first."""
        changes, level = [], 0.0
        for stage in problem.stages_of[device]:
            held, last = problem.held[stage], 2 * problem.stages + stage
            for start, final in zip(self.starts[stage], self.starts[last], strict=True):
                end = final + tied.duration[last * tied.microbatches]
                laps, phase = divmod(start, self.length)
                end_laps, end_phase = divmod(end, self.length)
                level += held * (end_laps - laps)
                changes += [(phase, held), (end_phase, -held)]
        yield level
        for _, change in sorted(changes):
            level += change
            yield level


def least_rate(problem: Problem, tied: Constraints) -> float:
    """Units for each microbatch below which no period is: work, or a turn over the cap."""
    count, stages = tied.microbatches, problem.stages
    rows = tied.duration[::count]
    best = 0.0
    for device, own in enumerate(problem.stages_of):
        work = sum(rows[stage + kind * stages] for stage in own for kind in range(3))
        held = sum(problem.held[stage] * _whole(tied, stage) for stage in own)
        turn = held / problem.caps[device] if held else 0.0
        best = max(best, work, turn * (1 - NEARLY))
    return best


def _whole(tied: Constraints, stage: int) -> float:
    """From the start of F to the end of W of a microbatch."""
    stages, count = tied.stages, tied.microbatches
    rows = tied.duration[::count]
    total = sum(rows[stage + kind * stages] for kind in range(3))
    for later in range(stage + 1, stages):
        ((_, there),) = tied.reads[later * count]
        ((_, back),) = tied.reads[(stages + later - 1) * count]
        total += rows[later] + rows[stages + later] + there + back
    return total

"""Relief: the same program with less of it in the memory of a device.

    --offload auto     saved state waits on the host; what the link has no time for stays
    --recompute all    only inputs are kept, and every forward runs twice
    both               inputs wait on the host too

Order and numbers stay what they are, so that a schedule with relief is a variant of itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import Enum

from weft.errors import InputError, ProgramError
from weft.ir.program import Program
from weft.lower import offload, overlapping, recompute
from weft.simulate import simulate
from weft.timeline import Timeline

OFFLOADED = 'A pipeline offloads as much by the same cost: Pipeline(..., offload="auto", cost=...).'
MOST_ACTIONS = 200_000  # of a program that is offloaded: choosing what goes takes its time


class Relief(Enum):
    """What is added to a program so that it fits into memory, as the command line spells it."""

    NONE = ""
    OFFLOAD = "--offload auto"
    RECOMPUTE = "--recompute all"
    BOTH = "--recompute all --offload auto"

    @property
    def is_recomputing(self) -> bool:
        """Whether forwards run again."""
        return self in (Relief.RECOMPUTE, Relief.BOTH)

    @property
    def is_offloading(self) -> bool:
        """Whether saved state goes to the host."""
        return self in (Relief.OFFLOAD, Relief.BOTH)


def is_fitting(timeline: Timeline) -> bool | None:
    """Whether every device holds at most what it has; None where that has no limit."""
    capacity = timeline.cost.memory.capacity
    return None if math.isinf(capacity) else max(timeline.memory.peaks) <= capacity


def relieved(timeline: Timeline, relief: Relief) -> Program:
    """The timeline's program with this relief; InputError where it has it already."""
    program, cost = timeline.program, timeline.cost
    if relief.is_recomputing:
        program = overlapping(recompute(program), cost)
    return offload(simulate(program, cost)) if relief.is_offloading else program


def reliefs(timeline: Timeline) -> Iterator[tuple[Relief, Timeline]]:
    """What makes a program fit that does not, timed: each of the two, or else both together."""
    if is_fitting(timeline) is not False:
        return
    found = [*_fitting(timeline, (Relief.OFFLOAD, Relief.RECOMPUTE))]
    yield from found or _fitting(timeline, (Relief.BOTH,))


def _fitting(timeline: Timeline, among: tuple[Relief, ...]) -> Iterator[tuple[Relief, Timeline]]:
    is_small = len(timeline.program) <= MOST_ACTIONS
    for relief in (one for one in among if is_small or not one.is_offloading):
        try:
            again = simulate(relieved(timeline, relief), timeline.cost)
        except (InputError, ProgramError):
            continue
        if is_fitting(again):
            yield relief, again

"""The critical path: what decides the makespan, and how much later all else could end."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from weft.cost import Cost
from weft.ir.earliest import Precedence, Seconds, earliest
from weft.ir.program import Program


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPath:
    """`actions` from first to last; `slack` of every action of the program, in seconds."""

    actions: tuple[int, ...]
    slack: Seconds = field(repr=False)


def critical_path(program: Program, cost: Cost, start: Seconds, end: Seconds) -> CriticalPath:
    """Walk back from the last end to whatever ended last before each start."""
    delays, gaps = cost.delays(program), cost.gaps(program)
    if not len(program):
        return CriticalPath((), np.empty(0))
    binding = binding_dependency(program, delays, end)
    arrival = (end[program.dependencies.producer] + delays)[binding]
    free = end + gaps[program.slot_of]
    path = [int(end.argmax())]
    while (before := _decider(program, arrival, free, binding, path[-1])) is not None:
        path.append(before)
    tail = _tail(program.precedence(delays), gaps, (end - start)[program.first_of_slot])
    return CriticalPath(tuple(reversed(path)), end.max() - tail[program.slot_of] - end)


def binding_dependency(program: Program, delays: Seconds, end: Seconds) -> NDArray[np.int64]:
    """For each slot, the dependency whose value arrives last; -1 where it reads none."""
    dependencies = program.dependencies
    arrival = end[dependencies.producer] + delays
    consumer = program.slot_of[dependencies.consumer]
    order = np.lexsort((arrival, consumer))
    binding = np.full(len(program.first_of_slot), -1, np.int64)
    inside = program.slot_of[dependencies.producer] == consumer
    order = order[~inside[order]]
    binding[consumer[order]] = order
    return binding


def _decider(
    program: Program, arrival: Seconds, free: Seconds, binding: NDArray[np.int64], action: int
) -> int | None:
    """The lane mate or the producer, whichever holds this action back longer."""
    slot = int(program.slot_of[action])
    first = int(program.first_of_slot[slot])
    lane_start = int(program.bounds[program.lane_of[first]])
    mate = first - 1 if first > lane_start else None
    row = int(binding[slot])
    if row < 0 or (mate is not None and free[mate] >= arrival[slot]):
        return mate
    return int(program.dependencies.producer[row])


def _tail(precedence: Precedence, gaps: Seconds, duration: Seconds) -> Seconds:
    """From the latest end of each slot to the last of all: the same machine backwards."""
    before = np.roll(gaps, 1)  # backwards, the gap of the slot before comes behind
    backwards = precedence.reversed().with_gaps(before[::-1])
    return earliest(backwards, (duration + before)[::-1])[::-1]

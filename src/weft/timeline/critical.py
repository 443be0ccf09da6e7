"""The critical path: what decides the makespan, and how much later all else could end."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from weft.cost import Cost
from weft.ir.earliest import Seconds, earliest
from weft.ir.program import Program


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPath:
    """`actions` from first to last; `slack` of every action of the program, in seconds."""

    actions: tuple[int, ...]
    slack: Seconds = field(repr=False)


def critical_path(program: Program, cost: Cost, start: Seconds, end: Seconds) -> CriticalPath:
    """Walk back from the last end to whatever ended last before each start."""
    delays = cost.delays(program)
    if not len(program):
        return CriticalPath((), np.empty(0))
    binding = binding_dependency(program, delays, end)
    path = [int(end.argmax())]
    while (before := _decider(program, delays, end, binding, path[-1])) is not None:
        path.append(before)
    return CriticalPath(tuple(reversed(path)), _slack(program, delays, start, end))


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
    program: Program, delays: Seconds, end: Seconds, binding: NDArray[np.int64], action: int
) -> int | None:
    """The lane mate or the producer, whichever holds this action back longer."""
    slot = int(program.slot_of[action])
    first = int(program.first_of_slot[slot])
    lane_start = int(program.bounds[program.lane_of[first]])
    mate = first - 1 if first > lane_start else None
    row = int(binding[slot])
    if row < 0:
        return mate
    producer = int(program.dependencies.producer[row])
    arrival = end[producer] + delays[row]
    return mate if mate is not None and end[mate] >= arrival else producer


def _slack(program: Program, delays: Seconds, start: Seconds, end: Seconds) -> Seconds:
    """The same machine backwards gives the latest end; what lies between is slack."""
    first = program.first_of_slot
    duration = (end - start)[first]
    tail = earliest(program.precedence(delays).reversed(), duration[::-1])[::-1]
    latest_end = end.max() - tail
    return np.asarray((latest_end - end[first])[program.slot_of])

"""The critical path: what decides the makespan, and how much later all else could end."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from weft.cost import Cost
from weft.errors import ProgramError
from weft.ir.actions import Index
from weft.ir.earliest import Precedence, Seconds, earliest
from weft.ir.program import Program


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPath:
    """`actions` from first to last; `slack` of every action of the program, in seconds."""

    actions: tuple[int, ...]
    slack: Seconds = field(repr=False)


def critical_path(program: Program, decider: Index, tail: Seconds, end: Seconds) -> CriticalPath:
    """Walk back from the last end to whatever ended last before each start."""
    if not len(program):
        return CriticalPath((), np.empty(0))
    path = [int(end.argmax())]
    while (before := int(decider[path[-1]])) >= 0:
        path.append(before)
        if len(path) > len(program):
            raise ProgramError([f"{program.name} never ends: `verify` names the action that waits"])
    return CriticalPath(tuple(reversed(path)), end.max() - tail[program.slot_of] - end)


def binding_dependency(program: Program, delays: Seconds, end: Seconds) -> Index:
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


def deciders(program: Program, cost: Cost, binding: Index, end: Seconds) -> Index:
    """For each action, what holds it back longest: lane mate, producer or turn; -1 for none."""
    delays, first = cost.delays(program), program.first_of_slot
    free = end + cost.gaps(program)[program.slot_of]
    mate = np.where(first > program.bounds[program.lane_of[first]], first - 1, -1)
    decider, until = mate, np.where(mate >= 0, free[mate], -np.inf)
    reads = np.flatnonzero(binding >= 0)
    producer = program.dependencies.producer[binding[reads]]
    is_later = end[producer] + delays[binding[reads]] > until[reads]
    decider[reads[is_later]] = producer[is_later]
    until[reads[is_later]] = (end[producer] + delays[binding[reads]])[is_later]
    sends, before = program.turns
    slots = program.slot_of[sends]
    waits = end[before] > until[slots]
    decider[slots[waits]] = before[waits]
    return decider[program.slot_of]


def tails(precedence: Precedence, gaps: Seconds, duration: Seconds) -> Seconds:
    """From the latest end of each slot to the last of all: the same machine backwards."""
    before = np.roll(gaps, 1)  # backwards, the gap of the slot before comes after
    backwards = precedence.reversed().with_gaps(before[::-1])
    return earliest(backwards, (duration + before)[::-1])[::-1]

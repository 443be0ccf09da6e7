"""Step order: one order of what all devices launch, without end, fed step by step.

    step 0   device 0   F0 F1              device 1   F0 B0 F1 B1
    step 1              F2 B0 F3 B1 sum               F2 B2 sum F3 B3

Whatever the data of a step release comes before what those of the next one do. A host that waits
for others itself, as for a sum, comes to its place in this order when they have launched what it
waits for: so none wait in a circle. Each lane has its own order in it, and after some bodies it
repeats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.ir.actions import Index
from weft.ir.earliest import Precedence, Seconds, earliest
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.ir.tables import Groups
from weft.lower.offload import slots_before_readers
from weft.lower.order import sums_of_norms
from weft.lower.periods import released, without_epilogue

_SPARE = 9  # bodies of an endless run beyond those of the program's steps


@dataclass(frozen=True, slots=True, eq=False)
class StepOrder:
    """Places in the order, by lane.

    openings  those of prologues
    turns     those of bodies, turn by turn, until they repeat
    width     by which a step is later than the one before it
    stride    by which a turn is, once they repeat
    """

    openings: tuple[Seconds, ...] = field(repr=False)
    turns: tuple[Seconds, ...] = field(repr=False)
    width: float
    stride: float

    def places(self, lane: int) -> Iterator[float]:
        """Those of all that a lane ever launches."""
        yield from self.openings[lane].tolist()
        table = self.turns[lane]
        for turn in count() if table.size else ():
            known = min(turn, len(table) - 1)
            yield from (table[known] + (turn - known) * self.stride).tolist()

    def step(self, place: float) -> int:
        """The step whose data have to be given for what has this place."""
        return int(place // self.width)


def step_order(program: Program) -> StepOrder:
    """The order of a lowered program that repeats.

    It is that of a run in which every slot takes a second and each step's data come when nothing is
    left to do with those before.
    """
    period = program.period
    assert period is not None
    bodies = 3 * (program.steps + _SPARE)
    endless = without_epilogue(program, bodies)
    width = float(len(endless) + 1)
    start = _starts(endless, width)
    stride = width * (period.microbatches // program.microbatches)
    lengths = np.add(period.prologue, np.multiply(period.body, bodies))
    lanes = np.split(start, np.cumsum(lengths)[:-1])
    openings = [lane[:opening] for lane, opening in zip(lanes, period.prologue, strict=True)]
    tables = [
        lane[opening:].reshape(bodies, length)
        for lane, opening, length in zip(lanes, period.prologue, period.body, strict=True)
    ]
    looked_at = 2 * bodies // 3  # the run's end lacks what would follow
    differs = np.zeros(looked_at - 1, np.bool_)
    for table in tables:
        differs |= (np.diff(table[:looked_at], axis=0) != stride).any(axis=1)
    settled = int(np.flatnonzero(differs).max(initial=-1)) + 1
    if settled > looked_at // 2:
        raise InputError(f"{program.name}: what its devices launch in a step does not repeat")
    turns = tuple(table[: settled + 1] for table in tables)
    return StepOrder(tuple(openings), turns, width, stride)


def _starts(endless: Program, width: float) -> Seconds:
    """When each action starts; all that a step releases after all that the one before it does."""
    machine, slots = endless.precedence(np.zeros(len(endless.dependencies))), endless.slot_of
    before, after = (
        slots[np.concatenate(pair)]
        for pair in zip(sums_of_norms(endless), _whole_meetings(endless), strict=True)
    )
    is_apart = before != after
    machine = machine.with_waits(after[is_apart], before[is_apart])
    data = machine.slots  # one more slot, in a lane of its own
    every = Precedence(
        bounds=np.append(machine.bounds, data + 1),
        consumer=np.concatenate([machine.consumer, slots]),
        producer=np.concatenate([machine.producer, np.full(len(endless), data)]),
        delay=np.concatenate([machine.delay, released(endless) * width]),
    )
    start = earliest(every, np.append(np.ones(machine.slots), 0.0))[slots]
    loads, before = slots_before_readers(endless)
    start[loads] = start[before] - 0.5  # not sooner: what is back takes memory
    return np.asarray(start)


def _whole_meetings(program: Program) -> tuple[Index, Index]:
    """All parts of a sum or gather, each with who reads one of them.

    Some networks let no device go on before all of them are there. Parts read the same.
    """
    actions, needs = program.actions, program.dependencies
    is_part = np.isin(actions.kind, (Kind.REDUCE, Kind.GATHER))
    first = np.full(len(program), len(program))
    np.minimum.at(first, needs.consumer, needs.producer)
    meeting = _numbered(np.stack([actions.kind, actions.edge, first], axis=1))
    parts, reads = np.flatnonzero(is_part), np.flatnonzero(is_part[needs.producer])
    readers, key = needs.consumer[reads], meeting[needs.producer[reads]]
    is_reader = ~is_part[readers]
    found = Groups(parts, meeting[parts]).join(readers[is_reader], key[is_reader])
    return found[1], found[0]


def _numbered(rows: NDArray[np.integer]) -> Index:
    """The same number for equal rows."""
    _, found = np.unique(rows, axis=0, return_inverse=True)
    return np.asarray(found.reshape(-1), np.int64)

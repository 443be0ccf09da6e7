"""Idle stretches and their causes: who waits, for what, for how long."""

from __future__ import annotations

from enum import Enum
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from weft.cost import Cost
from weft.ir.actions import Index
from weft.ir.earliest import Seconds
from weft.ir.kinds import Kind, Stream
from weft.ir.program import Program
from weft.timeline.critical import binding_dependency
from weft.timeline.memory import usage


class Cause(Enum):
    """Why a device's compute stream stands still; `meaning` says it in words."""

    WARM_UP = "warm-up"
    HOST = "host"
    VALUE = "value"
    WIRE = "wire"
    MEMORY = "memory"
    ORDER = "order"
    OPTIMIZER = "optimizer"
    COOL_DOWN = "cool-down"

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]

    @property
    def is_wire(self) -> bool:
        return self is Cause.WIRE


_MEANINGS = {
    Cause.WARM_UP: "nothing has reached the device yet",
    Cause.HOST: "the device's host works between two actions",
    Cause.VALUE: "another device has not computed what comes next",
    Cause.WIRE: "what comes next is computed and on its way",
    Cause.MEMORY: "something else is ready and would not fit",
    Cause.ORDER: "something else is ready, but the program runs another first",
    Cause.OPTIMIZER: "the weights that come next are not updated yet",
    Cause.COOL_DOWN: "its work is done, the step is not",
}


class Idle(NamedTuple):
    """One stretch; `waits_for` is the action that ends the wait, `before` the one that waits."""

    device: int
    start: float
    end: float
    cause: Cause
    before: int | None = None
    waits_for: int | None = None

    @property
    def seconds(self) -> float:
        return self.end - self.start


def idle_stretches(program: Program, cost: Cost, start: Seconds, end: Seconds) -> list[Idle]:
    """Every stretch in which a compute stream stands still between first start and last end.

    Where steps overlap, what lies before a device's first action and behind its last belongs to
    the steps before and after.
    """
    if not len(program):
        return []
    observer = _Observer(program, cost, start, end)
    return [
        stretch
        for index, lane in enumerate(program.lanes)
        if lane.stream is Stream.COMPUTE
        for stretch in observer.stretches(index)
    ]


class _Observer:
    """What one must know of a whole timeline to explain a gap in one of its lanes."""

    def __init__(self, program: Program, cost: Cost, start: Seconds, end: Seconds) -> None:
        delays = cost.delays(program)
        self._gaps = cost.gaps(program)
        self._program = program
        self._cost = cost
        self._start, self._end = start, end
        self._binding = binding_dependency(program, delays, end)
        is_update = np.isin(program.actions.kind, (Kind.REDUCE, Kind.UPDATE))
        self._updates = set(np.flatnonzero(is_update).tolist())
        self._ready = _ready(program, delays, end)
        self._opening, self._closing = float(start.min()), float(end.max())
        self._tolerance = 1e-12 * max(1.0, self._closing - self._opening)
        has_cap = np.isfinite(cost.memory.capacity)
        self._usage = usage(program, cost, start, end) if has_cap else None

    def stretches(self, lane: int) -> list[Idle]:
        """Before the first action, between actions, after the last."""
        device = self._program.lanes[lane].device
        slots = self._program.slots_of(lane)
        if not len(slots):
            return [Idle(device, self._opening, self._closing, Cause.WARM_UP)]
        first = self._program.first_of_slot[slots]
        before = np.concatenate([[self._opening], self._end[first[:-1]]])
        later = _earliest_behind(self._ready[slots])
        found: list[Idle] = []
        for place in np.flatnonzero(self._start[first] - before > self._tolerance).tolist():
            action = int(first[place])
            waits_for = self._origin(int(slots[place]))
            gap = (float(before[place]), float(self._start[action]))
            stretch = Idle(device, *gap, Cause.WARM_UP, action, waits_for)
            if place > 0:
                found += self._cut(stretch, slots[place:], later[place])
            elif self._cost.is_barrier:
                found.append(stretch)
        last = float(self._end[first[-1]])
        if self._cost.is_barrier and self._closing - last > self._tolerance:
            found.append(Idle(device, last, self._closing, Cause.COOL_DOWN))
        return found

    def _cut(self, stretch: Idle, slots: Index, other_ready: float) -> list[Idle]:
        """Pieces by cause: the host's work, not yet computed, on the wire, another passed over."""
        busy = min(stretch.start + self._gaps[slots[0] - 1], stretch.end)
        host = stretch._replace(end=busy, cause=Cause.HOST)
        waits = self._waits(stretch._replace(start=busy), slots, other_ready)
        return [piece for piece in (host, *waits) if piece.seconds > self._tolerance]

    def _waits(self, stretch: Idle, slots: Index, other_ready: float) -> list[Idle]:
        computed = stretch.start
        if stretch.waits_for is not None:
            computed = min(max(float(self._end[stretch.waits_for]), stretch.start), stretch.end)
        passed_over = min(max(other_ready, stretch.start), stretch.end)
        cuts = sorted({stretch.start, min(computed, passed_over), passed_over, stretch.end})
        pieces = []
        for begin, finish in pairwise(cuts):
            if begin >= passed_over:
                cause = self._why_not(stretch, slots, other_ready)
            elif begin >= computed:
                cause = Cause.WIRE
            else:
                cause = self._what_is_missing(stretch)
            pieces.append(stretch._replace(start=begin, end=finish, cause=cause))
        return pieces

    def _what_is_missing(self, stretch: Idle) -> Cause:
        """A value, or weights."""
        return Cause.OPTIMIZER if stretch.waits_for in self._updates else Cause.VALUE

    def _why_not(self, stretch: Idle, slots: Index, other_ready: float) -> Cause:
        """Why an action that was ready did not run: no memory for it, or the order says so."""
        if self._usage is None:
            return Cause.ORDER
        behind = slots[1:]
        slot = behind[np.flatnonzero(self._ready[behind] == other_ready)[0]]
        action = self._program.actions[int(self._program.first_of_slot[slot])]
        if action.kind is not Kind.F:
            return Cause.ORDER
        level = self._usage.level(stretch.device, stretch.start)
        needed = level + self._cost.memory.saved[action.stage]
        return Cause.MEMORY if needed > self._cost.memory.capacity else Cause.ORDER

    def _origin(self, slot: int) -> int | None:
        """The computation whose value arrives last, behind its receive and send if any."""
        row = int(self._binding[slot])
        if row < 0:
            return None
        return int(self._program.origin[self._program.dependencies.producer[row]])


def _ready(program: Program, delays: Seconds, end: Seconds) -> Seconds:
    """For each slot, when all its values are there, whatever its lane does."""
    dependencies = program.dependencies
    ready = np.zeros(len(program.first_of_slot))
    consumer = program.slot_of[dependencies.consumer]
    outside = program.slot_of[dependencies.producer] != consumer
    arrival = end[dependencies.producer] + delays
    np.maximum.at(ready, consumer[outside], arrival[outside])
    return ready


def _earliest_behind(ready: Seconds) -> Seconds:
    """For each place in a lane, when the first of all actions behind it was ready."""
    behind = np.full(len(ready), np.inf)
    behind[:-1] = np.minimum.accumulate(ready[:0:-1])[::-1]
    return behind

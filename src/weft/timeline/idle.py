"""Idle stretches and their causes: who waits, for what, for how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.cost import Cost
from weft.ir.actions import Index
from weft.ir.earliest import Seconds
from weft.ir.kinds import Kind, Stream
from weft.ir.program import Program
from weft.timeline.memory import usage


class Cause(Enum):
    """Why a device's compute stream is idle; `meaning` says it in words."""

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
        """Why the device waits, in words."""
        return _MEANINGS[self]


CAUSES = tuple(Cause)
_NUMBER = {cause: number for number, cause in enumerate(CAUSES)}


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
        """How long it lasts."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Idle stretches in columns: `cause` counts in CAUSES, an action of -1 is none."""

    device: Index
    start: Seconds
    end: Seconds
    cause: Index
    before: Index
    waits_for: Index

    @property
    def seconds(self) -> Seconds:
        """How long each of them lasts."""
        return self.end - self.start

    def sums(self, devices: int) -> Seconds:
        """Idle seconds of [device, cause]."""
        sums = np.zeros((devices, len(CAUSES)))
        np.add.at(sums, (self.device, self.cause), self.seconds)
        return sums

    def listed(self) -> list[Idle]:
        """One after the other."""
        columns = (getattr(self, field.name).tolist() for field in fields(self))
        return [
            Idle(device, start, end, CAUSES[cause], _action(before), _action(waits_for))
            for device, start, end, cause, before, waits_for in zip(*columns, strict=True)
        ]

    def longer_than(self, seconds: float) -> Stretches:
        """Those that last longer."""
        kept = self.seconds > seconds
        return Stretches(*(getattr(self, field.name)[kept] for field in fields(self)))


def _action(number: int) -> int | None:
    return None if number < 0 else number


def idle_stretches(
    program: Program, cost: Cost, binding: Index, start: Seconds, end: Seconds
) -> Stretches:
    """Every stretch in which a compute stream is idle between first start and last end.

    `binding` is for each slot the dependency whose value arrives last, or -1. Where steps overlap,
    what lies before a device's first action and after its last belongs to the steps before and
    after.
    """
    if not len(program):
        return _joined([])
    observer = _Observer(program, cost, binding, start, end)
    lanes = [index for index, lane in enumerate(program.lanes) if lane.stream is Stream.COMPUTE]
    return _joined([observer.stretches(lane) for lane in lanes])


def _joined(parts: Sequence[Stretches]) -> Stretches:
    none = Stretches(*(np.empty(0, kind) for kind in (int, float, float, int, int, int)))
    columns = ([getattr(part, field.name) for part in (none, *parts)] for field in fields(none))
    return Stretches(*(np.concatenate(column) for column in columns))


class _Gaps(NamedTuple):
    """Where a lane waits: its slot, from when to when, and when something else was ready.

    `other` is the first slot after it to be ready, at `other_ready`.
    """

    slot: Index
    start: Seconds
    end: Seconds
    other: Index
    other_ready: Seconds


class _Observer:
    """What one must know of a whole timeline to explain a gap in one of its lanes."""

    def __init__(
        self, program: Program, cost: Cost, binding: Index, start: Seconds, end: Seconds
    ) -> None:
        delays = cost.delays(program)
        self._host = cost.gaps(program)
        self._program = program
        self._cost = cost
        self._start, self._end = start, end
        self._origin = _origins(program, binding)
        self._is_update = np.isin(program.actions.kind, (Kind.REDUCE, Kind.UPDATE, Kind.GATHER))
        self._ready = _ready(program, delays, end)
        self._opening, self._closing = float(start.min()), float(end.max())
        self._tolerance = 1e-12 * max(1.0, self._closing - self._opening)
        has_cap = np.isfinite(cost.memory.capacity)
        self._usage = usage(program, cost, start, end) if has_cap else None

    def stretches(self, lane: int) -> Stretches:
        """Before the first action, between actions, after the last."""
        program, device = self._program, self._program.lanes[lane].device
        slots = program.slots_of(lane)
        if not len(slots):
            return self._whole(device, self._opening, self._closing, Cause.WARM_UP)
        first = program.first_of_slot[slots]
        parts = [self._between(device, slots)]
        if self._cost.is_barrier:
            opening = self._whole(device, self._opening, self._start[first[0]], Cause.WARM_UP)
            closing = self._whole(device, self._end[first[-1]], self._closing, Cause.COOL_DOWN)
            opening.before[:], opening.waits_for[:] = first[0], self._origin[slots[0]]
            parts = [opening, *parts, closing]
        return _joined(parts).longer_than(self._tolerance)

    def _whole(self, device: int, start: float, end: float, cause: Cause) -> Stretches:
        numbers = ([device], [start], [end], [_NUMBER[cause]], [-1], [-1])
        return Stretches(*map(np.array, numbers))

    def _between(self, device: int, slots: Index) -> Stretches:
        """Each gap in four pieces: the host's work, not yet computed, on the wire, passed over."""
        gaps = self._gaps(slots)
        origin = self._origin[gaps.slot]
        busy = np.minimum(gaps.start + self._host[gaps.slot - 1], gaps.end)
        computed = np.clip(np.where(origin >= 0, self._end[origin], busy), busy, gaps.end)
        passed = np.clip(gaps.other_ready, busy, gaps.end)
        cuts = np.stack([gaps.start, busy, np.minimum(computed, passed), passed, gaps.end], axis=1)
        missing = np.where(
            self._is_update[origin] & (origin >= 0), _NUMBER[Cause.OPTIMIZER], _NUMBER[Cause.VALUE]
        )
        host, wire = (np.full(len(busy), _NUMBER[cause]) for cause in (Cause.HOST, Cause.WIRE))
        why_not = np.where(
            self._has_no_room(device, gaps, busy), _NUMBER[Cause.MEMORY], _NUMBER[Cause.ORDER]
        )
        pieces = cuts.shape[1] - 1
        return Stretches(
            device=np.full(pieces * len(busy), device),
            start=cuts[:, :-1].ravel(),
            end=cuts[:, 1:].ravel(),
            cause=np.stack([host, missing, wire, why_not], axis=1).ravel(),
            before=np.repeat(self._program.first_of_slot[gaps.slot], pieces),
            waits_for=np.repeat(origin, pieces),
        )

    def _gaps(self, slots: Index) -> _Gaps:
        """Between the actions of a lane."""
        first = self._program.first_of_slot[slots]
        start, end = self._end[first[:-1]], self._start[first[1:]]
        places = np.flatnonzero(end - start > self._tolerance)
        other = _first_ready_after(self._ready[slots])[places + 1]
        ready = np.where(other >= 0, self._ready[slots[other]], np.inf)
        return _Gaps(slots[places + 1], start[places], end[places], slots[other], ready)

    def _has_no_room(self, device: int, gaps: _Gaps, when: Seconds) -> NDArray[np.bool_]:
        """Whether what was ready is a forward for which the device had no memory."""
        if self._usage is None:
            return np.zeros(len(when), np.bool_)
        actions, other = self._program.actions, self._program.first_of_slot[gaps.other]
        saved = np.array(self._cost.memory.saved)[actions.stage[other]]
        needed = self._usage.total(device).sampled(when) + saved
        is_forward = actions.kind[other] == Kind.F
        return np.asarray(is_forward & (needed > self._cost.memory.capacity))


def _origins(program: Program, binding: Index) -> Index:
    """For each slot, the computation whose value arrives last, by way of its receive and send."""
    rows = np.flatnonzero(binding >= 0)
    origin = np.full(len(binding), -1)
    origin[rows] = program.origin[program.dependencies.producer[binding[rows]]]
    return origin


def _ready(program: Program, delays: Seconds, end: Seconds) -> Seconds:
    """For each slot, when all its values are there, whatever its lane does."""
    dependencies = program.dependencies
    ready = np.zeros(len(program.first_of_slot))
    consumer = program.slot_of[dependencies.consumer]
    outside = program.slot_of[dependencies.producer] != consumer
    arrival = end[dependencies.producer] + delays
    np.maximum.at(ready, consumer[outside], arrival[outside])
    return ready


def _first_ready_after(ready: Seconds) -> Index:
    """For each place in a lane, the one after it that was ready first; -1 after the last."""
    backwards = ready[:0:-1]
    is_first = backwards <= np.minimum.accumulate(backwards)
    found = np.maximum.accumulate(np.where(is_first, np.arange(len(backwards)), 0))
    return np.append(len(ready) - 1 - found[::-1], -1)

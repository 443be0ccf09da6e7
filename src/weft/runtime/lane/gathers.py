"""Gathers: which of them an action has to wait for, as the weights that it uses are whole by then.

    reduce    GATHER of update 3            opens the gate of its weights as far as 3
    compute   F with version 4              passes it

Updates are counted from the start of the program. A gather may be of another lap of the ring than
what waits for it, which is why this is not among what actions of one lap read of each other. In a
synchronous program it always is: the forwards of a step wait for the gathers of the step before,
each for that of its stage, and so does whoever reads weights between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from weft.ir.actions import Action
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.lower.sums import gathers
from weft.runtime.lane.gates import AnyGate, Steps
from weft.runtime.lane.ring import Ring, horizon, window
from weft.runtime.lane.steps import Step

WeightsKey: TypeAlias = tuple[int, int, int]  # pipe, stage, tied weight or -1


class Due(NamedTuple):
    """The gather of an update of some weights."""

    holder: WeightsKey
    update: int


class Gathers:
    """The gathers of a program, and what waits for them."""

    def __init__(self, ring: Ring) -> None:
        self._ring, self._program = ring, ring.program
        self._rows: dict[Due, int] = {}  # by update of a lap
        for row, action in enumerate(self._program.actions if gathers(ring.program) else ()):
            if action.kind is Kind.GATHER:
                self._rows[Due(_holder(action), action.version or 0)] = row
        self._holders = {due.holder for due in self._rows}
        self._gates: dict[WeightsKey, AnyGate] = {}
        is_stale = ring.is_periodic and not ring.source.is_stashing
        self._used = _versions(ring.source) if self._rows and ring.is_periodic else {}
        self._readers = _COMPUTED if is_stale else (Kind.F,)  # a backward uses what its F has

    @property
    def are_left(self) -> bool:
        """Whether a synchronous step leaves any to the next one."""
        return bool(self._gates) and not self._ring.is_periodic

    def wait(self, updates: int) -> None:
        """Come after the gathers of as many updates."""
        for gate in self._gates.values():
            gate.pass_through(updates - 1)

    def before(self, row: int, lap: int) -> Iterator[tuple[int, int]]:
        """The rows and laps of gathers that an action has to come after."""
        for holder, update in self.due(row, lap):
            turn, version = divmod(update, self._ring.updates)
            yield self._rows[Due(holder, version)], turn

    def due(self, row: int, lap: int) -> Iterator[Due]:
        """The gathers that an action has to come after."""
        action = self._program.actions[row] if self._rows else None
        if action is None:
            return
        if action.kind is Kind.UPDATE and _holder(action) in self._holders:
            update = lap * self._ring.updates + (action.version or 0) - 1
            yield from [Due(_holder(action), update)] if update >= 0 else ()
        elif action.kind in self._readers:
            for tie, home in self._parts(action):
                update = self._version(action, home, lap) - 1
                if update >= 0:
                    yield Due((action.pipe, action.stage, tie), update)

    def _parts(self, action: Action) -> Iterator[tuple[int, int]]:
        """The weights that an action uses, each with the stage whose version counts."""
        homes = [(tie, ends[0]) for tie, ends in enumerate(self._program.ties)]
        for tie, home in ((-1, action.stage), *homes):
            if (action.pipe, action.stage, tie) in self._holders:
                yield tie, home

    def _version(self, action: Action, home: int, lap: int) -> int:
        period = self._ring.source.period
        if period is None:
            return lap * self._ring.updates + (action.version or 0)
        last = (action.microbatch or 0) + action.span - 1 + lap * self._ring.numbers
        kind = action.kind if home == action.stage else Kind.F
        known = self._used[kind, home]
        turns = max(0, -(-(last + 1 - len(known)) // period.microbatches))
        return known[last - turns * period.microbatches] + turns * period.versions

    def gated(self, steps: Steps, make: Callable[[], AnyGate | None]) -> Steps:
        """The steps, with gates between gathers and what waits for them."""
        gates = {holder: gate for holder in sorted(self._holders) if (gate := make()) is not None}
        found, self._gates = dict(steps), gates
        for row in found if gates else ():
            action = self._program.actions[row]
            if action.kind is Kind.GATHER:
                first, gate = action.version or 0, gates[_holder(action)]
                found[row] = _Opening(found[row], gate, first, self._ring.updates)
            elif action.kind in (*self._readers, Kind.UPDATE):
                found[row] = _AfterGathers(found[row], row, self, gates)
        return found

    def skip(self, updates: int) -> None:
        """As many updates are gathered: a program that is taken up again has none of them to do."""
        for gate in self._gates.values():
            gate.open(updates - 1)


class _Opening:
    """A gather, which opens the gate of its weights."""

    __slots__ = ("_first", "_gate", "_step", "_updates")

    def __init__(self, step: Step, gate: AnyGate, first: int, updates: int) -> None:
        self._step, self._gate, self._first, self._updates = step, gate, first, updates

    def wait(self, lap: int) -> None:
        self._step.wait(lap)

    def run(self, lap: int) -> None:
        self._step.run(lap)
        self._gate.open(lap * self._updates + self._first)


class _AfterGathers:
    """A step that uses weights which are gathered."""

    __slots__ = ("_gates", "_gathers", "_row", "_step")

    def __init__(
        self, step: Step, row: int, gathers: Gathers, gates: dict[WeightsKey, AnyGate]
    ) -> None:
        self._step, self._row, self._gathers, self._gates = step, row, gathers, gates

    def wait(self, lap: int) -> None:
        for holder, update in self._gathers.due(self._row, lap):
            self._gates[holder].pass_through(update)
        self._step.wait(lap)

    def run(self, lap: int) -> None:
        self._step.run(lap)


_COMPUTED = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.R)


def _holder(action: Action) -> WeightsKey:
    return action.pipe, action.stage, -1 if action.edge is None else action.edge


def _versions(program: Program) -> dict[tuple[Kind, int], dict[int, int]]:
    """For each kind and stage, the version that is used for each of the first microbatches."""
    found: dict[tuple[Kind, int], dict[int, int]] = {}
    for action in window(program, 0, horizon(program)).actions:
        if action.kind in _COMPUTED and action.microbatch is not None:
            known = found.setdefault((action.kind, action.stage), {})
            for microbatch in range(action.microbatch, action.microbatch + action.span):
                known[microbatch] = action.version or 0
    return found

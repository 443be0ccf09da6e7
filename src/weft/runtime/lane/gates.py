"""Gates: where a lane waits for what another lane of its device computes.

    reduce    ... ── REDUCE        passes the gate that the last backward opens
    compute   F2 B2 ┘    ...  UPDATE

What a gate is depends on the drive: a thread waits at it, or a stream of a GPU does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from weft.runtime.lane.steps import Step

Steps: TypeAlias = Mapping[int, Step]  # by row
Across: TypeAlias = Mapping[int, Sequence[int]]  # rows of other lanes that a row reads; ~closings


class AnyGate(Protocol):
    """Opened by an action of one lane, once a lap, for actions of others."""

    def open(self, lap: int) -> None: ...

    def pass_through(self, lap: int) -> None: ...


class Gated:
    """A step that waits for other lanes, or that they wait for."""

    __slots__ = ("_gates", "_opened", "_step")

    def __init__(self, step: Step, gates: Sequence[AnyGate], opened: AnyGate | None) -> None:
        self._step, self._gates, self._opened = step, gates, opened

    def wait(self, lap: int) -> None:
        for gate in self._gates:
            gate.pass_through(lap)
        self._step.wait(lap)

    def run(self, lap: int) -> None:
        self._step.run(lap)
        if self._opened is not None:
            self._opened.open(lap)


class GatedSteps(NamedTuple):
    """Steps and closings as they are run, and all gates between them."""

    steps: Steps
    closings: Steps
    gates: list[AnyGate]


def gated(steps: Steps, closings: Steps, across: Across, make: Callable[[], AnyGate]) -> GatedSteps:
    """The steps and closings, with gates where one lane reads what another computes."""
    found, closed = dict(steps), dict(closings)
    gates = {row: make() for producers in across.values() for row in producers}
    for consumer, producers in across.items():
        found[consumer] = Gated(found[consumer], [gates[row] for row in producers], None)
    for row, gate in gates.items():
        chosen, key = (closed, ~row) if row < 0 else (found, row)
        chosen[key] = Gated(chosen[key], (), gate)
    return GatedSteps(found, closed, [*gates.values()])

"""Offload: saved state goes to the host after its forward and comes back for its backward.

    compute   F0 F1 F2 F3 ... B0
    offload      0  1  2             each as soon as it is computed, in order
    onload               0           as late as its backward allows (`simulate` sees to that)

What is used again so soon that both copies cannot fit in between stays on the device; so does
what the very next slot uses. Of what is left, what lives longest goes first, as far as the
bytes allow.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from weft.cost import Cost
from weft.errors import InputError
from weft.ir.actions import Action
from weft.ir.kinds import Kind, Stream
from weft.ir.lanes import Lane
from weft.ir.program import Content, Program
from weft.ir.values import Value
from weft.timeline import Timeline

LEAST_DISTANCE = 2  # slots from the forward to the backward


class _State(NamedTuple):
    """Saved state of a forward: when it is there, when it is needed again, how long it copies."""

    forward: int
    backward: int
    ready: float
    needed: float
    copy: float
    size: float

    @property
    def life(self) -> float:
        return self.needed - self.ready


def offload(
    timeline: Timeline,
    *,
    stages: Collection[int] | None = None,
    most: float | None = None,
) -> Program:
    """The timeline's program with the state of these stages (or all) offloaded.

    `most` bounds the bytes of a device that are on the host at once or on their way; the cost's
    host capacity where it is not given.
    """
    program = timeline.program
    most = timeline.cost.memory.host_capacity if most is None else most
    chosen = frozenset(range(program.stages) if stages is None else stages)
    if chosen - set(range(program.stages)):
        raise InputError(f"{program.name} has stages 0 to {program.stages - 1}")
    if np.isin(program.actions.kind, (Kind.OFFLOAD, Kind.ONLOAD)).any() or program.period:
        raise InputError(f"{program.name} offloads already, or repeats")
    lanes: dict[Lane, Content] = dict(program.contents())
    for device in range(program.devices):
        states = [s for s in _states(timeline, device) if _stage(program, s) in chosen]
        kept = _within(_fitting(states), most)
        if kept:
            away = sorted(kept, key=lambda state: (state.ready, state.forward))
            home = sorted(kept, key=lambda state: (state.needed, state.backward))
            lanes[Lane(device, Stream.OFFLOAD)] = _copies(program, away, Kind.OFFLOAD)
            lanes[Lane(device, Stream.ONLOAD)] = _copies(program, home, Kind.ONLOAD)
    return program.with_lanes(lanes)


def _states(timeline: Timeline, device: int) -> list[_State]:
    """Every saved state of a device that lives for more than a slot."""
    program, cost = timeline.program, timeline.cost
    dependencies, actions = program.dependencies, program.actions
    forwards = actions.kind[dependencies.producer] == Kind.F
    rows = np.flatnonzero((dependencies.value == Value.SAVED) & forwards)
    rows = rows[program.device_of[dependencies.producer[rows]] == device]
    seconds = _copy_seconds(cost)
    states = []
    for row in rows.tolist():
        forward, backward = int(dependencies.producer[row]), int(dependencies.consumer[row])
        if program.slot_of[backward] - program.slot_of[forward] < LEAST_DISTANCE:
            continue
        stage = int(actions.stage[forward])
        states.append(
            _State(
                forward,
                backward,
                float(timeline.end[forward]),
                float(timeline.start[backward]),
                seconds[stage],
                cost.memory.saved[stage],
            )
        )
    return states


def _copy_seconds(cost: Cost) -> list[float]:
    return [cost.network.host.seconds(size) for size in cost.memory.saved]


def _fitting(states: list[_State]) -> list[_State]:
    """As many as have time for both copies, one after the other each way."""
    states = list(states)
    while True:
        away = _ends_away(states)
        home = _starts_home(states)
        late = [s for s in states if away[s.forward] > home[s.forward] + 1e-12]
        if not late:
            return states
        states.remove(min(late, key=lambda state: state.life))


def _ends_away(states: list[_State]) -> dict[int, float]:
    """When each has left, first in, first out."""
    ends: dict[int, float] = {}
    clock = -np.inf
    for state in sorted(states, key=lambda state: (state.ready, state.forward)):
        clock = max(clock, state.ready) + state.copy
        ends[state.forward] = clock
    return ends


def _starts_home(states: list[_State]) -> dict[int, float]:
    """When each must start back at the latest."""
    starts: dict[int, float] = {}
    clock = np.inf
    for state in sorted(states, key=lambda state: (-state.needed, -state.backward)):
        clock = min(clock, state.needed) - state.copy
        starts[state.forward] = clock
    return starts


def _within(states: list[_State], most: float) -> list[_State]:
    """What lives longest, as long as all that is away at once is no more than the bytes given."""
    if np.isinf(most):
        return states
    kept: list[_State] = []
    for state in sorted(states, key=lambda state: -state.life):
        if _most_at_once([*kept, state]) <= most:
            kept.append(state)
    return kept


def _most_at_once(states: list[_State]) -> float:
    events = [(state.needed, -state.size) for state in states]
    events += [(state.ready, state.size) for state in states]
    level = most = 0.0
    for _, change in sorted(events):
        level += change
        most = max(most, level)
    return most


def _stage(program: Program, state: _State) -> int:
    return int(program.actions.stage[state.forward])


def _copies(program: Program, states: list[_State], kind: Kind) -> list[Action]:
    return [
        program.actions[state.forward]._replace(kind=kind, version=None, segment=None)
        for state in states
    ]

"""Saved states: when they are there, when they are needed again, and which of them have time to go.

A state is what the forward of a stage keeps for its backward; of a stage that is cut into segments
that compute one after the other, what each of them keeps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.cost.parts import sharing
from weft.ir.actions import Index
from weft.ir.kinds import Kind, Stream
from weft.ir.program import Program
from weft.ir.tables import Groups
from weft.ir.values import Value
from weft.timeline import Timeline

LEAST_DISTANCE = 2  # slots from the forward to the backward
_IN_SLOTS = (Kind.F, Kind.B, Kind.I, Kind.R)


class State(NamedTuple):
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


def states_of(timeline: Timeline, device: int) -> list[State]:
    """Every saved state of a device, with whoever reads it first."""
    program = timeline.program
    forwards, readers = _of_segments(program) if leaves_by_segment(program) else _of_stages(program)
    order = np.argsort(timeline.start[readers], kind="stable")
    order = order[program.device_of[forwards[order]] == device]
    first: dict[int, int] = {}
    for forward, reader in zip(forwards[order].tolist(), readers[order].tolist(), strict=True):
        first.setdefault(forward, reader)
    sizes, host = timeline.cost.kept(program), timeline.cost.network.host
    if not leaves_by_segment(program):
        sizes = sizes * sharing(program.actions, program.stages)
    return [
        State(
            forward,
            backward,
            float(timeline.end[forward]),
            float(timeline.start[backward]),
            host.seconds(float(sizes[forward])),
            float(sizes[forward]),
        )
        for forward, backward in sorted(first.items())
    ]


def leaves_by_segment(program: Program) -> bool:
    """Whether every segment of a program computes in its turn, and can leave by itself."""
    actions = program.actions
    is_beside = any(lane.stream is Stream.EXPERTS for lane in program.lanes)
    is_plain = not (actions.kind == Kind.R).any() and bool((actions.span == 1).all())
    return bool((actions.segment >= 0).any()) and is_plain and not is_beside


def _of_stages(program: Program) -> tuple[Index, Index]:
    """Forwards, and those who read what they save."""
    needs = program.dependencies
    forwards = program.actions.kind[needs.producer] == Kind.F
    rows = np.flatnonzero((needs.value == Value.SAVED) & forwards)
    return needs.producer[rows], needs.consumer[rows]


def _of_segments(program: Program) -> tuple[Index, Index]:
    """Forwards of segments (or of stages that are whole), and the backwards of the same."""
    actions = program.actions
    columns = np.stack([actions.stage, actions.microbatch, actions.segment])
    _, cell = np.unique(columns, axis=1, return_inverse=True)
    cell = cell.reshape(-1)
    forwards = np.flatnonzero(actions.kind == Kind.F)
    backwards = np.flatnonzero(np.isin(actions.kind, (Kind.B, Kind.I)))
    readers, read = Groups(forwards, cell[forwards]).join(backwards, cell[backwards])
    return read, readers


def far(program: Program, states: list[State]) -> list[State]:
    """What is not read in the very next slot; of a segment, that is the next of its whole stage."""
    if leaves_by_segment(program):
        return [state for state in states if _is_between_others(program, state)]
    is_slot = (program.actions.joined == 0) & np.isin(program.actions.kind, _IN_SLOTS)
    slots = np.cumsum(is_slot)
    return [state for state in states if _distance(program, slots, state) >= LEAST_DISTANCE]


def _distance(program: Program, slots: Index, state: State) -> int:
    """Slots from a forward to whoever reads its state, on the reader's lane; weight gradients fill
    no slot of their own. `slots` counts them up to each action.
    """
    actions, lane = program.actions, program.lane_of[state.backward]
    forward = state.forward
    if program.lane_of[forward] != lane:  # a recomputation begins with another segment
        one = actions[forward]
        alike = (actions.kind == Kind.F) & (actions.stage == one.stage) & (program.lane_of == lane)
        forward = int(np.flatnonzero(alike & (actions.microbatch == one.microbatch))[-1])
    return max(0, int(slots[state.backward] - slots[forward]))


def _is_between_others(program: Program, state: State) -> bool:
    """Whether anything else is computed between a segment and its backward than their own stage."""
    actions, between = program.actions, slice(state.forward + 1, state.backward)
    own = actions[state.forward]
    is_other = (actions.stage[between] != own.stage) | (
        actions.microbatch[between] != own.microbatch
    )
    return bool((is_other & np.isin(actions.kind[between], _IN_SLOTS)).any())


def fitting(states: list[State]) -> list[State]:
    """As many as have time for both copies, one after the other each way."""
    states = list(states)
    while True:
        away = _ends_away(states)
        home = _starts_home(states)
        late = [s for s in states if away[s.forward] > home[s.forward] + 1e-12]
        if not late:
            return states
        states.remove(min(late, key=lambda state: state.life))


def _ends_away(states: list[State]) -> dict[int, float]:
    """When each has left, first in, first out."""
    ends: dict[int, float] = {}
    clock = -np.inf
    for state in sorted(states, key=lambda state: (state.ready, state.forward)):
        clock = max(clock, state.ready) + state.copy
        ends[state.forward] = clock
    return ends


def _starts_home(states: list[State]) -> dict[int, float]:
    """When each must start back at the latest."""
    starts: dict[int, float] = {}
    clock = np.inf
    for state in sorted(states, key=lambda state: (-state.needed, -state.backward)):
        clock = min(clock, state.needed) - state.copy
        starts[state.forward] = clock
    return starts


def relieving(states: list[State], most: float) -> list[State]:
    """What leaves so that the peak falls, up to these bytes in all: of what can be away when most
    is kept, what is needed last; then the same of what still stays.
    """
    table = np.array([(s.ready, s.needed, s.copy, s.size) for s in states]).reshape(-1, 4)
    ready, needed, copy, size = table.T
    times = np.unique(ready)  # at one of them most is kept
    first, stop = np.searchsorted(times, ready), np.searchsorted(times, needed)
    gone, back = np.searchsorted(times, ready + copy), np.searchsorted(times, needed - copy)
    level = np.zeros(len(times))
    for index in range(len(states)):
        level[first[index] : stop[index]] += size[index]
    stays, left = np.ones(len(states), np.bool_), most * (1 + 1e-9)  # as fractions are rounded
    while (can_go := stays & (size <= left)).any():
        fullest = int(level.argmax())
        is_away = can_go & (gone <= fullest) & (fullest < back)
        among = np.flatnonzero(is_away if is_away.any() else can_go)
        chosen = among[(needed if is_away.any() else needed - ready)[among].argmax()]
        level[gone[chosen] : back[chosen]] -= size[chosen]
        left -= size[chosen]
        stays[chosen] = False
    return [state for state, remains in zip(states, stays, strict=True) if not remains]


def within(states: list[State], most: float) -> list[State]:
    """What lives longest, as long as all that is away at once is no more than the bytes given."""
    if np.isinf(most):
        return states
    kept: list[State] = []
    for state in sorted(states, key=lambda state: -state.life):
        if _most_at_once([*kept, state]) <= most:
            kept.append(state)
    return kept


def _most_at_once(states: list[State]) -> float:
    events = [(state.needed, -state.size) for state in states]
    events += [(state.ready, state.size) for state in states]
    level = most = 0.0
    for _, change in sorted(events):
        level += change
        most = max(most, level)
    return most

"""Offload: saved state goes to the host after its forward and comes back for its backward.

    compute   F0 F1 F2 F3 ... B0
    offload      0  1  2             each as soon as it is computed, in order
    onload               0           as late as its backward allows (`simulate` sees to that)

What the very next slot uses stays on the device. Of what is left goes

    "auto"      what has time for both copies, so that no backward waits for the host
    "all"       all of it, though backwards may wait
    a fraction  what lives longest, up to so much of the bytes that the device saves
    "none"      nothing

as far as the bytes allow that the host has. A program that repeats offloads alike in every body.

Where stages are cut into segments that compute one after the other, each leaves by itself as soon
as it has run, and comes back for its own backward:

    compute   F0/0 F0/1 F0/2 ... B0/2 B0/1 B0/0
    offload        0/0  0/1  0/2
    onload                  0/2  0/1  0/0

Where parts of them run beside the computation, or again, all of a stage leave once the last has
run.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from weft.cost import Cost
from weft.cost.parts import sharing
from weft.errors import InputError
from weft.ir.actions import Action, Index
from weft.ir.earliest import earliest
from weft.ir.kinds import Kind, Stream
from weft.ir.lanes import Lane
from weft.ir.program import Content, Program
from weft.ir.tables import Groups
from weft.ir.values import Value
from weft.lower.periods import period_of, released, without_epilogue
from weft.timeline import Timeline

Amount: TypeAlias = Literal["none", "auto", "all"] | float

AMOUNTS = ("none", "auto", "all")
LEAST_DISTANCE = 2  # slots from the forward to the backward
_IN_SLOTS = (Kind.F, Kind.B, Kind.I, Kind.R)
_LEAST_IN_BODY = 4  # microbatches, of which a fraction can leave
_SPARE = 9  # bodies of a long run beyond those of the program's steps


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
    amount: Amount = "auto",
    stages: Collection[int] | None = None,
    most: float | None = None,
) -> Program:
    """The timeline's program with so much of the state of these stages (or all) offloaded.

    `most` bounds the bytes of a device that are on the host at once or on their way; the cost's
    host capacity where it is not given.
    """
    program = timeline.program
    check_amount(amount)
    most = timeline.cost.memory.host_capacity if most is None else most
    chosen = frozenset(range(program.stages) if stages is None else stages)
    if chosen - set(range(program.stages)):
        raise InputError(f"{program.name} has stages 0 to {program.stages - 1}")
    if offloads(program):
        raise InputError(f"{program.name} offloads already")
    wanted = _Wanted(amount, chosen, most)
    if program.period is not None and not isinstance(amount, str):
        timeline = _timed(_of_longer_bodies(program), timeline.cost)
        program = timeline.program
    if program.period is not None:
        return _added(program, _alike_in_every_body(timeline, wanted))
    return _added(program, {d: wanted.of(timeline, d) for d in range(program.devices)})


def offloads(program: Program) -> bool:
    """Whether a program moves saved state already."""
    return bool(np.isin(program.actions.kind, (Kind.OFFLOAD, Kind.ONLOAD)).any())


def check_amount(amount: Amount) -> None:
    """Refuse what says nothing of how much is to be offloaded."""
    is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
    if amount not in AMOUNTS and not (is_number and 0 <= float(amount) <= 1):
        raise InputError(
            f"offload is {', '.join(map(repr, AMOUNTS))} or a fraction of the bytes that each"
            f" device saves, from 0 to 1, not {amount!r}"
        )


# choosing


class _Wanted(NamedTuple):
    """How much of the state of some stages is to go, within the bytes that the host has."""

    amount: Amount
    stages: frozenset[int]
    most: float

    def of(self, timeline: Timeline, device: int) -> list[_State]:
        """The states of a device that go."""
        stage = timeline.program.actions.stage
        every = _states(timeline, device)
        states = [one for one in every if int(stage[one.forward]) in self.stages]
        far = _far(timeline.program, states)
        match self.amount:
            case "none":
                found = []
            case "auto":
                found = _fitting(far)
            case "all":
                found = far
            case share:
                found = _longest(far, float(share) * sum(state.size for state in states))
        return _within(found, self.most)


def _states(timeline: Timeline, device: int) -> list[_State]:
    """Every saved state of a device, with whoever reads it first."""
    program = timeline.program
    forwards, readers = _of_segments(program) if _is_by_segment(program) else _of_stages(program)
    order = np.argsort(timeline.start[readers], kind="stable")
    order = order[program.device_of[forwards[order]] == device]
    first: dict[int, int] = {}
    for forward, reader in zip(forwards[order].tolist(), readers[order].tolist(), strict=True):
        first.setdefault(forward, reader)
    sizes, host = timeline.cost.kept(program), timeline.cost.network.host
    if not _is_by_segment(program):
        sizes = sizes * sharing(program.actions, program.stages)
    return [
        _State(
            forward,
            backward,
            float(timeline.end[forward]),
            float(timeline.start[backward]),
            host.seconds(float(sizes[forward])),
            float(sizes[forward]),
        )
        for forward, backward in sorted(first.items())
    ]


def _is_by_segment(program: Program) -> bool:
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


def _far(program: Program, states: list[_State]) -> list[_State]:
    """What is not read in the very next slot; of a segment, that is the next of its whole stage."""
    if _is_by_segment(program):
        return [state for state in states if _is_between_others(program, state)]
    return [state for state in states if _distance(program, state) >= LEAST_DISTANCE]


def _distance(program: Program, state: _State) -> int:
    """Slots from a forward to whoever reads its state, on the reader's lane; weight gradients fill
    no slot of their own.
    """
    actions, lane = program.actions, program.lane_of[state.backward]
    forward = state.forward
    if program.lane_of[forward] != lane:  # a recomputation begins with another segment
        one = actions[forward]
        alike = (actions.kind == Kind.F) & (actions.stage == one.stage) & (program.lane_of == lane)
        forward = int(np.flatnonzero(alike & (actions.microbatch == one.microbatch))[-1])
    between = np.arange(forward + 1, state.backward + 1)
    is_slot = (actions.joined[between] == 0) & np.isin(actions.kind[between], _IN_SLOTS)
    return int(is_slot.sum())


def _is_between_others(program: Program, state: _State) -> bool:
    """Whether anything else is computed between a segment and its backward than their own stage."""
    actions, between = program.actions, slice(state.forward + 1, state.backward)
    own = actions[state.forward]
    is_other = (actions.stage[between] != own.stage) | (
        actions.microbatch[between] != own.microbatch
    )
    return bool((is_other & np.isin(actions.kind[between], _IN_SLOTS)).any())


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


def _longest(states: list[_State], most: float) -> list[_State]:
    """What lives longest, up to these bytes in all."""
    found: list[_State] = []
    left = most * (1 + 1e-9)  # as fractions are rounded
    for state in sorted(states, key=lambda state: (-state.life, state.forward)):
        if state.size <= left:
            left -= state.size
            found.append(state)
    return found


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


# programs that repeat


def _alike_in_every_body(timeline: Timeline, wanted: _Wanted) -> dict[int, list[_State]]:
    """States of a program that repeats: those that go in every body, once a long run has settled.

    Of a fraction, what lives longest in a body.
    """
    program, period = timeline.program, timeline.program.period
    assert period is not None
    long = _timed(program.unrolled(3 * (program.steps + _SPARE)), timeline.cost)
    body = max(1, period.microbatches)
    settled = int(long.program.actions.microbatch.max()) // 2 // body * body
    is_wanted = wanted if isinstance(wanted.amount, str) else wanted._replace(amount="all")
    chosen: dict[int, list[_State]] = {}
    for device in range(program.devices):
        going = {state.forward for state in is_wanted.of(long, device)}
        microbatch = long.program.actions.microbatch
        shown = [
            state
            for state in _states(long, device)
            if settled <= int(microbatch[state.forward]) < settled + body
        ]
        found = [state for state in shown if state.forward in going]
        if not isinstance(wanted.amount, str):
            found = _longest(found, wanted.amount * sum(state.size for state in shown))
        keys = {_key(long.program, state.forward, body) for state in found}
        chosen[device] = [
            state
            for state in _states(timeline, device)
            if _key(program, state.forward, body) in keys
        ]
    return chosen


def _of_longer_bodies(program: Program) -> Program:
    """The same program with enough microbatches in its body for a fraction of them to leave."""
    period = program.period
    assert period is not None
    times = -(-_LEAST_IN_BODY // max(1, period.microbatches))
    if times == 1:
        return program
    longer = program.unrolled(times)
    return longer.with_lanes(
        longer.contents(),
        period=replace(
            period,
            body=tuple(length * times for length in period.body),
            microbatches=period.microbatches * times,
            versions=period.versions * times,
            repeats=max(1, period.repeats // times),
        ),
    )


def _key(program: Program, forward: int, body: int) -> tuple[int, int]:
    """What comes again with every body: a stage, and which microbatch of the body it is."""
    actions = program.actions
    return int(actions.stage[forward]), int(actions.microbatch[forward]) % body


def _timed(program: Program, cost: Cost) -> Timeline:
    """When everything happens in a program without copies."""
    durations, gaps = cost.durations(program), cost.gaps(program)
    precedence = program.precedence(cost.delays(program)).with_gaps(gaps)
    starts = earliest(precedence, durations + gaps)
    return Timeline(program, cost, starts[program.slot_of], (starts + durations)[program.slot_of])


# adding


def _added(program: Program, chosen: dict[int, list[_State]]) -> Program:
    """The program with lanes of copies, each of which repeats as what it stands beside."""
    lanes: dict[Lane, Content] = dict(program.contents())
    sources: list[Index] = [*np.split(np.arange(len(program)), program.bounds[1:-1])]
    for device, states in chosen.items():
        if states:
            away = sorted(states, key=lambda state: (state.ready, state.forward))
            home = sorted(states, key=lambda state: (state.needed, state.backward))
            lanes[Lane(device, Stream.OFFLOAD)] = _copies(program, away, Kind.OFFLOAD)
            lanes[Lane(device, Stream.ONLOAD)] = _copies(program, home, Kind.ONLOAD)
            sources.append(np.array([state.forward for state in away]))
            sources.append(np.array([state.backward for state in home]))
    lane = np.repeat(np.arange(len(sources)), [*map(len, sources)])
    period = period_of(program, source=np.concatenate(sources), lane=lane, lanes=len(sources))
    return program.with_lanes(lanes, period=period)


def _copies(program: Program, states: list[_State], kind: Kind) -> list[Action]:
    found = [program.actions[s.forward]._replace(kind=kind, version=None) for s in states]
    return found if _is_by_segment(program) else [one._replace(segment=None) for one in found]


# what a run that is fed step by step asks


def onload_steps(program: Program) -> Index:
    """For each load of a program that repeats, the step whose data have to be given before it.

    That is as soon as the device gets to the slot before its reader, not sooner: what is back takes
    memory. -1 for other actions.
    """
    endless = without_epilogue(program, program.steps + _SPARE)
    since, needs = released(endless), endless.dependencies
    is_load = endless.actions.kind == Kind.ONLOAD
    rows = np.flatnonzero(is_load[needs.producer])
    reader = np.full(len(endless), len(endless))
    np.minimum.at(reader, needs.producer[rows], needs.consumer[rows])
    found = np.full(len(program), -1)
    assert program.period is not None
    for index, lane in enumerate(program.lanes):
        if lane.stream is Stream.ONLOAD:
            first, start = int(program.bounds[index]), int(endless.bounds[index])
            listed = program.period.prologue[index] + program.period.body[index]
            read = reader[start : start + listed]
            before = np.maximum(read - 1, endless.bounds[endless.lane_of[read]])
            found[first : first + listed] = since[before]
    return found

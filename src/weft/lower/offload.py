"""Offload: saved state goes to the host after its forward and comes back for its backward.

    compute   F0 F1 F2 F3 ... B0
    offload      0  1  2             each as soon as it is computed, in order
    onload               0           as late as its backward allows (`simulate` sees to that)

What the very next slot uses stays on the device. Of what is left goes

    "auto"      what has time for both copies, so that no backward waits for the host
    "all"       all of it, though backwards may wait
    a fraction  up to so much of the bytes that the device saves, chosen so that its peak falls
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
from weft.errors import InputError
from weft.ir.actions import Actions, Index
from weft.ir.earliest import earliest
from weft.ir.kinds import Kind, Stream
from weft.ir.lanes import Lane
from weft.ir.program import Content, Program
from weft.lower.periods import period_of, released, without_epilogue
from weft.lower.saved_states import (
    State,
    far,
    fitting,
    leaves_by_segment,
    relieving,
    states_of,
    within,
)
from weft.timeline import Timeline

Amount: TypeAlias = Literal["none", "auto", "all"] | float

AMOUNTS = ("none", "auto", "all")
_LEAST_IN_BODY = 4  # microbatches, of which a fraction can leave
_SPARE = 9  # bodies of a long run beyond those of the program's steps


def offload(
    timeline: Timeline,
    *,
    amount: Amount = "auto",
    stages: Collection[int] | None = None,
    most: float | None = None,
) -> Program:
    """The timeline's program with this much of the state of these stages (or all) offloaded.

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
        raise InputError(f"{program.name} offloads already, and cannot be made to offload again")
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

    def of(self, timeline: Timeline, device: int) -> list[State]:
        """The states of a device that go."""
        stage = timeline.program.actions.stage
        every = states_of(timeline, device)
        states = [one for one in every if int(stage[one.forward]) in self.stages]
        distant = far(timeline.program, states)
        match self.amount:
            case "none":
                found = []
            case "auto":
                found = fitting(distant)
            case "all":
                found = distant
            case share:
                found = relieving(distant, float(share) * sum(state.size for state in states))
        return within(found, self.most)


# programs that repeat


def _alike_in_every_body(timeline: Timeline, wanted: _Wanted) -> dict[int, list[State]]:
    """States of a program that repeats: those that go in every body, once a long run has settled.

    Of a fraction, what lowers the peak of a body.
    """
    program, period = timeline.program, timeline.program.period
    assert period is not None
    long = _timed(program.unrolled(3 * (program.steps + _SPARE)), timeline.cost)
    body = max(1, period.microbatches)
    settled = int(long.program.actions.microbatch.max()) // 2 // body * body
    is_wanted = wanted if isinstance(wanted.amount, str) else wanted._replace(amount="all")
    chosen: dict[int, list[State]] = {}
    for device in range(program.devices):
        going = {state.forward for state in is_wanted.of(long, device)}
        microbatch = long.program.actions.microbatch
        shown = [
            state
            for state in states_of(long, device)
            if settled <= int(microbatch[state.forward]) < settled + body
        ]
        found = [state for state in shown if state.forward in going]
        if not isinstance(wanted.amount, str):
            found = relieving(found, wanted.amount * sum(state.size for state in shown))
        keys = {_key(long.program, state.forward, body) for state in found}
        chosen[device] = [
            state
            for state in states_of(timeline, device)
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


def _added(program: Program, chosen: dict[int, list[State]]) -> Program:
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


def _copies(program: Program, states: list[State], kind: Kind) -> Actions:
    forwards = program.actions.take([state.forward for state in states])
    found = forwards.replace(kind=kind, version=-1, joined=0)
    return found if leaves_by_segment(program) else found.replace(segment=-1)


# what a run that is fed step by step asks


def onload_steps(program: Program) -> Index:
    """For each load of a program that repeats, the step whose data have to be given before it.

    That is as soon as the device gets to the slot before its reader, not sooner: what is back takes
    memory. -1 for other actions.
    """
    endless = without_epilogue(program, program.steps + _SPARE)
    since, (loads, before) = released(endless), slots_before_readers(endless)
    due = np.full(len(endless), -1)
    due[loads] = since[before]
    found = np.full(len(program), -1)
    assert program.period is not None
    for index, lane in enumerate(program.lanes):
        if lane.stream is Stream.ONLOAD:
            first, start = int(program.bounds[index]), int(endless.bounds[index])
            listed = program.period.prologue[index] + program.period.body[index]
            found[first : first + listed] = due[start : start + listed]
    return found


def slots_before_readers(program: Program) -> tuple[Index, Index]:
    """Loads, and for each what its device computes before its reader."""
    needs, is_load = program.dependencies, program.actions.kind == Kind.ONLOAD
    rows = np.flatnonzero(is_load[needs.producer])
    reader = np.full(len(program), len(program))
    np.minimum.at(reader, needs.producer[rows], needs.consumer[rows])
    loads = np.flatnonzero(is_load & (reader < len(program)))
    read = reader[loads]
    return loads, np.maximum(read - 1, program.bounds[program.lane_of[read]])

"""One order of transfers: on one wire for each device, none wait for each other in a circle.

Over some networks all transfers of a device share one queue, and a send waits until its receive
is reached. Then the order of these queues can lock up, as that of computations can:

    wire of device 0    S1 R0          device 0 waits until device 1 receives 1,
    wire of device 1    S0 R1          device 1 until device 0 receives 0

So can transfers that are posted as one group, since they start and end together. Channels with a
lane for each end hold what is sent, and this rule says nothing of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.ir.actions import Index
from weft.ir.kinds import EDGE_END
from weft.ir.program import Program
from weft.ir.values import Value
from weft.lower import transfer_steps
from weft.lower.meetings import Meetings, singly, unrolled
from weft.lower.periods import released, without_epilogue
from weft.notation.tokens import token
from weft.verify.context import Breach, Context
from weft.verify.cycles import cycles
from weft.verify.order import Wait


def in_one_order(context: Context) -> Iterator[Breach]:
    """Every transfer takes place, even if it waits until both of its ends are reached."""
    if not context.has_one_wire:
        return
    found = list(_circles(context, Meetings.of(context.program, singly(context.program))))
    yield from found
    if not found and context.limits.groups is not None:
        yield from _circles(context, _grouped(context))


def _grouped(context: Context) -> Meetings:
    """The program as it is looked at, which repeats as often as its steps say."""
    source, groups = context.source, context.limits.groups
    assert groups is not None
    repeats = 1
    body = sum(source.period.body) if source.period else 0
    if body:
        repeats += (len(context.program) - len(source)) // body
    return Meetings.of(context.program, unrolled(source, groups, repeats))


def _circles(context: Context, meetings: Meetings) -> Iterator[Breach]:
    for ring in cycles(meetings.precedence, meetings.start()):
        waits = [Wait(int(meetings.consumer[i]), int(meetings.producer[i])) for i in ring]
        story = ", ".join(_words(context, wait) for wait in waits)
        at, remedy = _remedy(context, meetings, waits)
        yield context.at(at, f"deadlock of transfers: {story}. {remedy}")


def _words(context: Context, wait: Wait) -> str:
    here, there = (int(context.program.device_of[row]) for row in wait)
    whose = "" if here == there else f" of device {there}"
    return (
        f"device {here} waits at {context.token(wait.consumer)} for"
        f" {context.token(wait.producer)}{whose}"
    )


def _remedy(context: Context, meetings: Meetings, waits: list[Wait]) -> tuple[int, str]:
    """A wire of the ring on which what others wait for comes after what waits, or with it."""
    program = context.program
    held_up, awaited = next(
        (wait.consumer, before.producer)
        for wait, before in zip(waits, waits[-1:] + waits[:-1], strict=True)
        if program.lanes[program.lane_of[wait.consumer]].is_one_wire
        and wait.consumer != before.producer
    )
    one, other = context.token(awaited), context.token(held_up)
    on = f"On device {program.device_of[held_up]}"
    if meetings.begin[held_up] == meetings.begin[awaited]:
        return held_up, f"{on}, post {one} and {other} one after the other."
    return held_up, f"{on}, move {one} in front of {other}."


# step by step


def late_transfers(context: Context) -> Iterator[Breach]:
    """Messages that a step needs, on a wire after some that wait for the data of a later one."""
    if not context.has_one_wire:
        return
    yield from _parted_groups(context)
    endless = without_epilogue(context.source, context.program.steps + 1)
    since, needs = released(endless), endless.dependencies
    is_wire = np.isin(endless.actions.kind, list(EDGE_END))
    is_read = is_wire[needs.producer] & ~is_wire[needs.consumer]
    is_known = since[needs.consumer] < context.program.steps
    is_late = is_read & is_known & (since[needs.producer] > since[needs.consumer])
    for row in np.flatnonzero(is_late).tolist():
        reader, receive = int(needs.consumer[row]), int(needs.producer[row])
        first = _held_up_by(endless, receive, since)
        device, words = int(endless.device_of[reader]), token(endless, receive)
        yield context.without(
            device,
            token(endless, reader),
            f"device {device} waits at {token(endless, reader)} for {words}, and transfers wait"
            f" before it for {token(endless, first)} of device {endless.device_of[first]}, which"
            f" needs the data of step {since[receive]}. Move {words} and its send in front.",
        )


def _parted_groups(context: Context) -> Iterator[Breach]:
    """Groups of which a step's call could do only a part."""
    source, groups = context.source, context.limits.groups
    if groups is None:
        return
    steps, sizes = transfer_steps(source), unrolled(source, groups, 1)
    for index, lane in enumerate(source.lanes):
        if not lane.is_one_wire:
            continue
        last = int(source.bounds[index])
        for size in sizes[lane.device]:
            first, last = last, last + size
            if steps[first] != steps[last - 1]:
                one, other = token(source, first), token(source, last - 1)
                yield context.without(
                    lane.device,
                    one,
                    f"device {lane.device} posts {one} and {other} as one group, and the second"
                    f" needs the data of step {steps[last - 1]}, the first of step"
                    f" {steps[first]} alone. Post them one after the other.",
                )


def _held_up_by(endless: Program, row: int, since: Index) -> int:
    """The transfer before this one, at either end, whose value needs the latest step's data."""
    needs, lane, step = endless.dependencies, endless.lane_of, int(since[row])
    meets = np.flatnonzero(needs.value == Value.MESSAGE)
    ends = np.stack([needs.producer[meets], needs.consumer[meets]])
    while since[endless.origin[row]] < step:
        own = ends[:, (ends == row).any(axis=0)].ravel().tolist()
        before = [end - 1 for end in own if end and lane[end - 1] == lane[end]]
        row = next(other for other in before if since[other] == step)
    return row

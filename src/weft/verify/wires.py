"""Matched wires: one send and one receive for each value that crosses devices, in one order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from weft.ir.actions import Column
from weft.ir.kinds import Direction, Kind, Stream
from weft.ir.lanes import Channel, Lane
from weft.ir.program import Program
from weft.ir.values import Value
from weft.lower.wires import ENDS
from weft.verify.context import Breach, Context


def matched(context: Context) -> Iterator[Breach]:
    """A program without any wire leaves all of them to lowering."""
    if not any(lane.stream is Stream.WIRE for lane in context.program.lanes):
        return
    for send, receive in ENDS.values():
        yield from _doubled(context, send, receive)
        yield from _needless(context, send, receive)
        yield from _unsent(context, send)
    yield from _parted(context)
    yield from _crossed(context)


def _doubled(context: Context, *kinds: Kind) -> Iterator[Breach]:
    for kind in kinds:
        for row, _ in context.coverage.repeats(kind):
            word = context.token(row)
            device = int(context.program.device_of[row])
            yield context.at(row, f"device {device} lists {word} twice. Remove one of the two.")


def _needless(context: Context, *kinds: Kind) -> Iterator[Breach]:
    needed = _needed(context, kinds[0])
    for kind in kinds:
        row, microbatch = context.coverage.cells(kind)
        is_needless = ~needed[context.program.actions.edge[row], microbatch]
        for lost in np.unique(row[is_needless]).tolist():
            word = context.token(lost)
            yield context.at(lost, f"{word} carries a value that no other device reads. Remove it.")


def _unsent(context: Context, send: Kind) -> Iterator[Breach]:
    """What is sent and never received is for `drained` to report."""
    unsent = _needed(context, send) & (context.coverage.count(send) == 0)
    for edge, microbatch in np.argwhere(unsent).tolist():
        ends = context.program.graph.edges[edge]
        source, destination = ends if send is Kind.SEND_ACTIVATION else ends[::-1]
        sender, receiver = (context.holder(stage, microbatch) for stage in (source, destination))
        word = context.word(source, send, microbatch, edge=edge)
        yield context.without(
            sender,
            word,
            f"device {receiver} waits for {word}, which device {sender} never sends."
            f" Add it to device {sender}.",
        )


def _needed(context: Context, send: Kind) -> NDArray[np.bool_]:
    """For each [edge, microbatch], whether a value crosses devices."""
    program = context.program
    pipe = np.array(program.pipe_of)[
        np.arange(context.coverage.microbatches) % program.microbatches
    ]
    source, destination = np.array(program.graph.edges).reshape(-1, 2).T
    table = program.placement.table
    crosses = table[pipe][:, source] != table[pipe][:, destination]
    if send is Kind.SEND_GRADIENT:
        is_learning = np.array([stage.is_learning for stage in program.graph.stages])
        crosses &= is_learning[source] & np.array(program.graph.is_returned)
    return np.asarray(crosses.T)


def _parted(context: Context) -> Iterator[Breach]:
    """The first message of those that leave on one channel and are expected on another."""
    program, dependencies = context.program, context.program.dependencies
    rows = np.flatnonzero(dependencies.value == Value.MESSAGE)
    sends, receives = dependencies.producer[rows], dependencies.consumer[rows]
    ends = np.stack([program.lane_of[sends], program.lane_of[receives]])
    _, firsts = np.unique(ends, axis=1, return_index=True)
    for send, receive in zip(sends[firsts].tolist(), receives[firsts].tolist(), strict=True):
        there, here = (program.lanes[program.lane_of[row]].channel for row in (send, receive))
        is_same_way = not (there and here) or there[:2] == here[:2]
        if is_same_way and there != here:
            yield context.at(
                receive,
                f"device {program.device_of[receive]} expects {context.token(receive)} on the"
                f" {_name(here)}, but {context.token(send)} leaves on the {_name(there)}."
                f" List both on {'one channel' if there and here else 'channels, or on wires'}.",
            )


def _name(channel: Channel | None) -> str:
    return f"channel for {_NAMES[channel.direction]}" if channel else "wire of its device"


_NAMES = {
    Direction.ACTIVATION: "activations",
    Direction.GRADIENT: "gradients",
    Direction.BOTH: "both",
}


def _crossed(context: Context) -> Iterator[Breach]:
    """Channel by channel, the first message that is not received in the order of sending."""
    program = context.program
    lane_at = {lane: index for index, lane in enumerate(program.lanes)}
    for channel in dict.fromkeys(lane.channel for lane in program.lanes if lane.channel):
        sender = lane_at.get(Lane(channel.source, Stream.WIRE, channel))
        receiver = lane_at.get(Lane(channel.destination, Stream.WIRE, channel))
        if sender is not None and receiver is not None:
            yield from _first_crossing(context, channel, sender, receiver)


def _first_crossing(
    context: Context, channel: Channel, sender: int, receiver: int
) -> Iterator[Breach]:
    program = context.program
    sent, received = _messages(program, sender), _messages(program, receiver)
    if sent.shape != received.shape:
        return  # a message is missing or doubled, and reported as that
    differs = np.flatnonzero((sent != received).any(axis=0))
    if not len(differs):
        return
    send, receive = (int(program.bounds[lane] + differs[0]) for lane in (sender, receiver))
    cause = ""
    if channel.direction is Direction.BOTH:
        cause = (
            f": activations and gradients of device {channel.source} come on one channel, in the"
            f" order of their sends, and {len(differs)} of {sent.shape[1]} are taken for others"
        )
    yield context.at(
        receive,
        f"device {channel.destination} expects {context.token(receive)} where"
        f" {context.token(send)} arrives{cause}. List receives in the order of their sends.",
    )


def _messages(program: Program, lane: int) -> Column:
    """Edge, microbatch and span of each message of a lane."""
    actions = program.lane(lane)
    return np.stack([actions.edge, actions.microbatch, actions.span])

"""Wires: a send and a receive for each value that crosses devices.

One ordered channel for each (source, destination, direction), each end on a lane of its own:

    device 0   compute              F0 F1 F2           B0
               wire 0 -> 1          S0 S1 S2
               wire 1 -> 0                          R0
    device 1   compute                 F0 B0 F1 B1 ...
               wire 0 -> 1             R0 R1 R2
               wire 1 -> 0                   S0

A channel sends in the order in which its values are computed and receives in that same order.
What stays on its device gets no wire.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.ir.actions import Actions, Index
from weft.ir.earliest import earliest
from weft.ir.kinds import Direction, Kind, Stream
from weft.ir.lanes import Channel, Lane, Period
from weft.ir.program import Content, Program
from weft.ir.values import Value
from weft.lower.periods import period_of

# The send and the receive of a channel.
ENDS = {
    Direction.ACTIVATION: (Kind.SEND_ACTIVATION, Kind.RECV_ACTIVATION),
    Direction.GRADIENT: (Kind.SEND_GRADIENT, Kind.RECV_GRADIENT),
}


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """What crosses devices, channel by channel, in the order in which it is computed.

    Channel i carries messages bounds[i] : bounds[i + 1]. A message covers the microbatches that
    its producer and its consumer have in common.
    """

    channels: tuple[Channel, ...]
    bounds: Index
    producer: Index = field(repr=False)
    consumer: Index = field(repr=False)
    edge: Index = field(repr=False)
    microbatch: Index = field(repr=False)
    span: Index = field(repr=False)

    def __len__(self) -> int:
        return len(self.producer)


def messages(program: Program) -> Messages:
    """The values that a program without wires hands from device to device."""
    rows = np.flatnonzero(program.crossing)
    dependencies, actions = program.dependencies, program.actions
    producer, consumer = dependencies.producer[rows], dependencies.consumer[rows]
    edge, is_gradient = dependencies.edge[rows], dependencies.value[rows] == Value.GRADIENT
    first = np.maximum(actions.microbatch[producer], actions.microbatch[consumer])
    ends = actions.microbatch + actions.span
    span = np.minimum(ends[producer], ends[consumer]) - first
    keys = _channel_keys(program, producer, consumer, is_gradient)
    used, channel = np.unique(keys, return_inverse=True)  # small, so that no product overflows

    place = _places(program, producer, channel)
    key = (channel * len(program) + place) * max(1, len(program.graph.edges)) + edge
    order = np.argsort(key, kind="stable")
    order = order[_new_rows(key[order], first[order])]
    starts = np.searchsorted(channel[order], np.arange(len(used)))
    return Messages(
        channels=tuple(_channel(program, int(each)) for each in used),
        bounds=np.append(starts, len(order)),
        producer=producer[order],
        consumer=consumer[order],
        edge=edge[order],
        microbatch=first[order].astype(np.int64),
        span=span[order].astype(np.int64),
    )


def wires(program: Program) -> Program:
    """The same program with a send and a receive for each value that crosses devices."""
    if any(lane.stream is Stream.WIRE for lane in program.lanes):
        raise InputError(f"{program.name} has wires already")
    found = messages(program)
    lanes: dict[Lane, Content] = dict(program.contents())
    for index, channel in enumerate(found.channels):
        here = slice(int(found.bounds[index]), int(found.bounds[index + 1]))
        send, receive = ENDS[channel.direction]
        common = {"edge": found.edge[here], "span": found.span[here]}
        lanes[Lane(channel.source, Stream.WIRE, channel)] = Actions.of(
            program.actions.stage[found.producer[here]], send, found.microbatch[here], **common
        )
        lanes[Lane(channel.destination, Stream.WIRE, channel)] = Actions.of(
            program.actions.stage[found.consumer[here]], receive, found.microbatch[here], **common
        )
    return program.with_lanes(lanes, period=_period(program, found))


def unwired(program: Program) -> Program:
    """The same program without sends and receives."""
    if not any(lane.stream is Stream.WIRE for lane in program.lanes):
        return program
    kept = [index for index, lane in enumerate(program.lanes) if lane.stream is not Stream.WIRE]
    period = program.period and replace(
        program.period,
        prologue=tuple(program.period.prologue[index] for index in kept),
        body=tuple(program.period.body[index] for index in kept),
    )
    lanes = {program.lanes[index]: program.lane(index) for index in kept}
    return program.with_lanes(lanes, period=period)


def _places(program: Program, producer: Index, channel: Index) -> Index:
    """Where each producer stands in the order in which its channel's values are computed.

    That of its lane; of several lanes, as where some stages end with experts and others do not, the
    order in which they end if all actions take as long.
    """
    lanes = np.unique(np.stack([channel, program.lane_of[producer]]), axis=1)[0]
    if len(np.unique(lanes)) == len(lanes):
        return producer
    at_once = program.precedence(np.zeros(len(program.dependencies)))
    start = earliest(at_once, np.ones(len(program.first_of_slot)))
    order = np.lexsort((np.arange(len(program)), start[program.slot_of]))
    return np.argsort(order)[producer]


def _channel_keys(
    program: Program, producer: Index, consumer: Index, is_gradient: NDArray[np.bool_]
) -> Index:
    source = program.device_of[producer].astype(np.int64)
    ends = source * program.devices + program.device_of[consumer]
    return ends + is_gradient * program.devices**2


def _channel(program: Program, key: int) -> Channel:
    is_gradient, ends = divmod(key, program.devices**2)
    direction = Direction.GRADIENT if is_gradient else Direction.ACTIVATION
    return Channel(*divmod(ends, program.devices), direction)


def _new_rows(key: Index, microbatch: Index) -> Index:
    """Rows that differ from the one before them: a span reads its neighbour only once."""
    repeats = (np.diff(key) == 0) & (np.diff(microbatch) == 0)
    return np.flatnonzero(np.append(True, ~repeats)[: len(key)])


def _period(program: Program, found: Messages) -> Period | None:
    """Both ends of a channel repeat as the computations of their messages do."""
    lanes = len(program.lanes)
    sender = lanes + 2 * np.repeat(np.arange(len(found.channels)), np.diff(found.bounds))
    return period_of(
        program,
        source=np.concatenate([np.arange(len(program)), found.producer, found.producer]),
        lane=np.concatenate([program.lane_of, sender, sender + 1]),
        lanes=lanes + 2 * len(found.channels),
    )

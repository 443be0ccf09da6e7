"""The lanes of a program as JSON: whose they are and how long, not what they hold.

    {"device": 0, "stream": "wire",
     "channel": {"source": 0, "destination": 1, "direction": "activation"},
     "actions": 12, "prologue": 3, "body": 4}

The stream is compute where it is left out; a periodic program's lanes say where their body lies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from weft.errors import InputError
from weft.ir.kinds import Direction, Stream
from weft.ir.lanes import Channel, Lane
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.notation.json.reading import Node
from weft.notation.limits import check_lane

_NEEDED = ("device", "actions")
_KEYS = (*_NEEDED, "stream", "channel")
_CHANNEL = ("source", "destination", "direction")
_BODY = ("prologue", "body")


class LaneEntry(NamedTuple):
    """A lane, how many actions it holds, and of these its prologue and its body."""

    lane: Lane
    actions: int
    prologue: int
    body: int
    node: Node


def lane_objects(program: Program) -> Iterator[dict[str, object]]:
    """What `read_lanes` reads."""
    lengths = np.diff(program.bounds).tolist()
    for index, (lane, length) in enumerate(zip(program.lanes, lengths, strict=True)):
        written: dict[str, object] = {"device": int(lane.device)}
        if lane.stream is not Stream.COMPUTE:
            written["stream"] = lane.stream.value
        if lane.channel is not None:
            source, destination, direction = lane.channel
            ends = (int(source), int(destination), direction.value)
            written["channel"] = dict(zip(_CHANNEL, ends, strict=True))
        written["actions"] = length
        if program.period is not None:
            written["prologue"] = int(program.period.prologue[index])
            written["body"] = int(program.period.body[index])
        yield written


def read_lanes(node: Node, placement: Placement, *, is_periodic: bool) -> list[LaneEntry]:
    """Every lane, each listed once."""
    entries = [_entry(item, is_periodic=is_periodic) for item in node.items()]
    if not entries:
        with node.place():
            raise InputError("a program has at least one lane; is the file cut off?")
    seen: set[Lane] = set()
    for entry in entries:
        with entry.node.place():
            check_lane(entry.lane, placement)
            if entry.lane in seen:
                raise InputError("this lane stands twice")
        seen.add(entry.lane)
    return entries


def _entry(node: Node, *, is_periodic: bool) -> LaneEntry:
    extra = _BODY if is_periodic else ()
    members = node.members((*_KEYS, *extra), (*_NEEDED, *extra))
    lane = Lane(
        members["device"].count(),
        members["stream"].choice(Stream) if "stream" in members else Stream.COMPUTE,
        _channel(members["channel"]) if "channel" in members else None,
    )
    actions = members["actions"].count()
    prologue, body = (members[key].count() for key in _BODY) if is_periodic else (0, actions)
    with node.place():
        if prologue + body > actions:
            raise InputError(f"prologue and body are {prologue + body} of {actions} actions")
    return LaneEntry(lane, actions, prologue, body, node)


def _channel(node: Node) -> Channel:
    members = node.members(_CHANNEL, _CHANNEL)
    return Channel(
        members["source"].count(),
        members["destination"].count(),
        members["direction"].choice(Direction),
    )

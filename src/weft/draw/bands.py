"""Bands: the rows of a picture, each the slots of some lanes of one device.

One for each device, or three, as in Kimi K2's figure: computation, communication, offload.
Where lanes of a band overlap in time, the first is in front.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.ir.actions import Index
from weft.ir.earliest import Seconds
from weft.ir.kinds import Kind, Stream
from weft.ir.program import Program
from weft.ir.values import Value
from weft.timeline import Timeline

ROWS = {
    "compute": (Stream.COMPUTE,),
    "comm": (Stream.EXPERTS, Stream.WIRE, Stream.REDUCE),
    "copy": (Stream.OFFLOAD, Stream.ONLOAD),
}
MOMENTS = (Kind.UPDATE, Kind.REDUCE, Kind.GATHER, Kind.SEND_ACTIVATION, Kind.SEND_GRADIENT)


class Band(NamedTuple):
    """A row: its label, its device, and the slots of its lanes, lane by lane."""

    label: str
    device: int
    lanes: tuple[Index, ...]


BandsOf: TypeAlias = Callable[[Program], list[Band]]


def devices(program: Program) -> list[Band]:
    """One band for each device: what it computes."""
    return [
        Band(str(device), device, _lanes(program, device, ROWS["compute"]))
        for device in range(program.devices)
    ]


def streams(program: Program) -> list[Band]:
    """Three bands for each device; one that is empty on all of them is left out."""
    digits, letters = len(str(program.devices - 1)), max(map(len, ROWS))
    bands = [
        Band(f"{device:>{digits}} {name:{letters}}", device, _lanes(program, device, wanted))
        for device in range(program.devices)
        for name, wanted in ROWS.items()
    ]
    used = {band.label.split()[1] for band in bands if any(map(len, band.lanes))}
    return [band for band in bands if band.label.split()[1] in used]


def shown_ends(timeline: Timeline) -> Seconds:
    """When each action ends in a picture: a send when what it sent has arrived."""
    dependencies = timeline.program.dependencies
    rows = np.flatnonzero(dependencies.value == Value.MESSAGE)
    ends = timeline.end.copy()
    np.maximum.at(ends, dependencies.producer[rows], timeline.end[dependencies.consumer[rows]])
    return ends


def is_moment(timeline: Timeline) -> NDArray[np.bool_]:
    """For each action, whether it is an update, a sum or a send that takes no time."""
    is_short = timeline.start == shown_ends(timeline)
    return np.asarray(is_short & np.isin(timeline.program.actions.kind, MOMENTS))


def _lanes(program: Program, device: int, wanted: tuple[Stream, ...]) -> tuple[Index, ...]:
    found = []
    for index, lane in enumerate(program.lanes):
        if lane.device == device and lane.stream in wanted:
            slots = program.slots_of(index)
            kinds = program.actions.kind[program.first_of_slot[slots]]
            received = np.isin(kinds, (Kind.RECV_ACTIVATION, Kind.RECV_GRADIENT))
            found.append(slots[~received])
    return tuple(lane for lane in found if len(lane))

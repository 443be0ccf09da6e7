"""Small programs that several test files read and write."""

from __future__ import annotations

from collections.abc import Iterator

from weft.ir.actions import Action, Pair
from weft.ir.kinds import Direction, Kind, Stream
from weft.ir.lanes import Channel, Lane
from weft.ir.placement import Placement
from weft.ir.program import Program

F, B = Kind.F, Kind.B


def one_f_one_b(devices: int, microbatches: int) -> Program:
    """1F1B, to have something real to write."""

    def lane(device: int) -> Iterator[Action]:
        warmup = min(devices - device - 1, microbatches)
        for step in range(microbatches + warmup):
            if step < microbatches:
                yield Action(device, F, step)
            if step >= warmup:
                yield Action(device, B, step - warmup)

    lanes = [lane(device) for device in range(devices)]
    return Program.build("1f1b", Placement.straight(devices), lanes, microbatches=microbatches)


def two_pipes() -> Program:
    """Two devices that each hold a stage of both pipes, and overlap F with B."""
    first: list[Action | Pair] = [
        Action(0, F, 0),
        Action(1, F, 1),
        Pair(Action(0, F, 2), Action(1, B, 1)),
    ]
    second: list[Action | Pair] = [
        Action(1, F, 0),
        Action(1, B, 0),
        Action(1, Kind.UPDATE, version=0, pipe=0),
    ]
    send = Action(0, Kind.SEND_ACTIVATION, 0, edge=0)
    out = Lane(0, Stream.WIRE, Channel(0, 1, Direction.ACTIVATION))
    lanes: dict[Lane, list[Action | Pair]] = {Lane(0): first, Lane(1): second, out: [send]}
    placement = Placement(((0, 1), (1, 0)))
    return Program.build("two", placement, lanes, microbatches=3, pipe_of=(0, 1, 0))

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


# torch lowers its ZBV order so with defer_pp_recv=True: rank 1 takes 0F2 for a gradient.
SWAPPED = """\
0F0,0SEND_F0,0F1,0SEND_F1,0F2,3RECV_F0,0SEND_F2,3F0,3I0,3RECV_F1,3SEND_B0,3W0,3F1,3I1,3SEND_B1,\
3W1,0F3,0RECV_B0,0SEND_F3,0I0,0W0,3RECV_F2,3F2,3I2,3SEND_B2,3W2,0RECV_B1,0I1,0W1,3RECV_F3,3F3,3I3,\
3SEND_B3,3W3,3REDUCE_GRAD,0RECV_B2,0I2,0W2,0RECV_B3,0I3,0W3,0REDUCE_GRAD
1RECV_F0,1F0,2F0,2SEND_F0,1RECV_F1,1F1,2F1,2SEND_F1,2RECV_B0,2I0,2W0,1RECV_F2,1F2,1I0,1SEND_B0,1W0,\
2F2,2SEND_F2,2RECV_B1,2I1,2W1,1RECV_F3,1F3,1I1,1SEND_B1,1W1,2F3,2SEND_F3,2RECV_B2,2I2,2W2,1I2,\
1SEND_B2,2RECV_B3,2I3,1I3,1SEND_B3,1W2,2W3,2REDUCE_GRAD,1W3,1REDUCE_GRAD
"""

# All sends after all computations of their kind, all receives in front of them: torch runs it.
APART = """\
0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1,0REDUCE_GRAD
1RECV_F0,1RECV_F1,1F0,1F1,1B0,1B1,1SEND_B0,1SEND_B1,1REDUCE_GRAD
"""

# The same with two stages on each rank; sends come long after, receives long before.
APART_LOOPED = """\
0F0,0F1,0SEND_F0,0SEND_F1,2RECV_F0,2RECV_F1,2F0,2F1,2SEND_F0,2SEND_F1,\
2RECV_B0,2RECV_B1,2B0,2B1,2SEND_B0,0RECV_B0,2SEND_B1,0RECV_B1,0B0,0B1,0REDUCE_GRAD,2REDUCE_GRAD
1RECV_F0,1RECV_F1,1F0,1F1,1SEND_F0,1SEND_F1,3RECV_F0,3F0,3B0,3RECV_F1,3F1,3B1,\
3SEND_B0,3SEND_B1,1RECV_B0,1RECV_B1,1B0,1B1,1SEND_B0,1SEND_B1,1REDUCE_GRAD,3REDUCE_GRAD
"""

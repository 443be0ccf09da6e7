"""Programs of the tests' own: valid orders that no schedule of the registry has, and small ones."""

from __future__ import annotations

from weft.ir.actions import Action
from weft.ir.kinds import Kind
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.schedules import Schedule, Shape


def newest_first(program: Program) -> Program:
    """The same with its microbatches reversed."""
    last = program.microbatches - 1
    return program.with_lanes(
        {
            lane: actions.replace(microbatch=last - actions.microbatch)
            for lane, actions in program.contents().items()
        }
    )


def crossed() -> Program:
    """Two devices of two stages whose messages are read in other orders than they are sent.

    Between the same two ranks activations and gradients of both stages are under way at once.
    """
    lanes = [
        "0F0 0F1 0F2 0F3 2F3 2F0 2F2 2F1 2I1 2I2 2W2 2I0 2I3 2W1 0I3 0I0 0W0 2W3 0I2 2W0 0I1 0W3"
        " 0W1 0W2",
        "1F3 1F0 1F2 1F1 3F1 3I1 3F2 3I2 3W1 3F0 3I0 3F3 3I3 1I0 1I3 1I1 3W0 1W1 1I2 3W3 1W3 3W2"
        " 1W0 1W2",
    ]
    return Program.build(
        "crossed",
        Placement(((0, 1, 0, 1),)),
        [[Action(int(t[0]), Kind[t[1]], int(t[2])) for t in lane.split()] for lane in lanes],
        microbatches=4,
    )


def small(schedule: Schedule) -> Program:
    """Of a schedule on two devices."""
    least, most = schedule.stages_per_device
    shape = Shape(
        devices=2,
        microbatches=4,
        stages_per_device=least if most else 2,
        updates=6,
        round=2 if schedule.takes_round else 0,
    )
    return schedule.program(shape)

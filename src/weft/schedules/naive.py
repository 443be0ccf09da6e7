"""Naive model parallelism: one microbatch at a time through all stages and back."""

from weft.cost import Share
from weft.ir.actions import Actions
from weft.ir.kinds import Kind
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.schedules.kit.orders import by_slot
from weft.schedules.kit.schedule import Claims, schedule
from weft.schedules.kit.shape import Shape


def _seconds(shape: Shape, share: Share) -> float:
    return shape.microbatches * shape.devices * (share.forward + share.backward)


@schedule(
    name="naive",
    summary="one microbatch at a time; only one device ever works",
    paper="folklore; GPipe (arXiv 1811.06965), introduction",
    claims=Claims(
        formula="N D (F + B)",
        seconds=_seconds,
        peak_formula="1",
        peak=lambda shape, device: 1,
    ),
)
def naive(shape: Shape) -> Program:
    turns = range(shape.microbatches)
    lanes = [
        by_slot(
            (Actions.of(device, Kind.F, turns), turns),
            (Actions.of(device, Kind.B, turns), turns),
        )
        for device in range(shape.devices)
    ]
    placement = Placement.straight(shape.devices)
    return Program.build("naive", placement, lanes, microbatches=shape.microbatches)

"""Grouped GPipe: WPipe's two groups of stages, run synchronously (its Fig. 15)."""

from weft.cost import Share
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.schedules.kit.orders import breadth_first
from weft.schedules.kit.schedule import Claims, schedule
from weft.schedules.kit.shape import Shape

GROUPS = 2


def _seconds(shape: Shape, share: Share) -> float:
    devices, microbatches = shape.devices, shape.microbatches
    items = max(GROUPS * microbatches, devices + microbatches) + devices - 1
    return items * (share.forward + share.backward) / GROUPS


@schedule(
    name="grouped-gpipe",
    summary="GPipe with the stages in two groups: F of both, B of both in reverse",
    paper="Yang et al. 2022, WPipe (OpenReview cw-EmNq5zfD), Fig. 15",
    claims=Claims(
        formula="(N + (D - 1)/2)(F + B), N >= D; (2 D - 1 + N)(F + B)/2 below",
        seconds=_seconds,
        peak_formula="N",
        peak=lambda shape, device: shape.microbatches,
    ),
    stages_per_device=(GROUPS, GROUPS),
)
def grouped_gpipe(shape: Shape) -> Program:
    placement = Placement.looped(shape.devices, GROUPS)
    lanes = [
        breadth_first(device, placement, shape.microbatches) for device in range(shape.devices)
    ]
    return Program.build("grouped-gpipe", placement, lanes, microbatches=shape.microbatches)

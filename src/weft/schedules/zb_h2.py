"""ZB-H2: twice ZB-H1's warm-up, no bubble inside a device's own span."""

from weft.cost import Share
from weft.ir.actions import Actions
from weft.ir.kinds import Kind
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.schedules.kit.orders import split_one_forward_one_backward
from weft.schedules.kit.schedule import Claims, schedule
from weft.schedules.kit.shape import Shape


def _lane(device: int, shape: Shape) -> Actions:
    forward = Actions.of(device, Kind.F, range(shape.microbatches))
    return split_one_forward_one_backward(
        forward,
        forward.replace(kind=Kind.B),
        warmup=min(2 * (shape.devices - device - 1), shape.microbatches),
        weight_start=2 * device,
    )


def _seconds(shape: Shape, share: Share) -> float:
    idle = max(0.0, share.forward + share.input_grad - 2 * share.weight_grad)
    return shape.microbatches * (share.forward + share.backward) + (shape.devices - 1) * idle


def _holds(shape: Shape, share: Share) -> bool:
    is_long = shape.microbatches >= 2 * shape.devices - 1
    return is_long and share.weight_grad <= min(share.forward, share.input_grad)


@schedule(
    name="zb-h2",
    summary="no bubble between steps that overlap, at twice the peak; with a barrier as zb-h1",
    paper="Qi et al. 2023, Zero Bubble (arXiv 2401.10241)",
    claims=Claims(
        formula="N (F + I + W) + (D - 1) max(0, F + I - 2W), N >= 2D - 1",
        seconds=_seconds,
        measure="span",
        peak_formula="min(N, 2D - 1) on every device",
        peak=lambda shape, device: min(shape.microbatches, 2 * shape.devices - 1),
        holds=_holds,
    ),
)
def zb_h2(shape: Shape) -> Program:
    lanes = [_lane(device, shape) for device in range(shape.devices)]
    placement = Placement.straight(shape.devices)
    return Program.build("zb-h2", placement, lanes, microbatches=shape.microbatches)

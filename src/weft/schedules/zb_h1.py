"""ZB-H1: 1F1B with the weight gradient split off, filling the bubble at 1F1B's memory."""

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
        warmup=min(shape.devices - device - 1, shape.microbatches),
        weight_start=device,
    )


def _seconds(shape: Shape, share: Share) -> float:
    idle = share.forward + share.input_grad - share.weight_grad
    return shape.microbatches * (share.forward + share.backward) + (shape.devices - 1) * idle


def _holds(shape: Shape, share: Share) -> bool:
    return shape.microbatches >= shape.devices and share.weight_grad <= share.input_grad


@schedule(
    name="zb-h1",
    summary="1F1B with I and W apart: a third of the bubble at the same peak",
    paper="Qi et al. 2023, Zero Bubble (arXiv 2401.10241)",
    claims=Claims(
        formula="N (F + I + W) + (D - 1)(F + I - W), N >= D",
        seconds=_seconds,
        peak_formula="min(N, D) on every device",
        peak=lambda shape, device: min(shape.microbatches, shape.devices),
        holds=_holds,
    ),
)
def zb_h1(shape: Shape) -> Program:
    lanes = [_lane(device, shape) for device in range(shape.devices)]
    placement = Placement.straight(shape.devices)
    return Program.build("zb-h1", placement, lanes, microbatches=shape.microbatches)

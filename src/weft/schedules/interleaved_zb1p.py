"""Interleaved ZB1P: ZB-H1 over several stages per device in a loop."""

from weft.cost import Share
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.schedules.kit.orders import Table, balanced_groups, split_one_forward_one_backward
from weft.schedules.kit.schedule import FULL_PIPE, Claims, schedule
from weft.schedules.kit.shape import Shape


def _warmup(shape: Shape, device: int) -> int:
    group = balanced_groups(shape.microbatches, shape.devices)[0]
    loops = (shape.stages_per_device - 1) * group
    items = shape.microbatches * shape.stages_per_device
    return min(shape.devices - device - 1 + loops, items)


def _seconds(shape: Shape, share: Share) -> float:
    fill = (shape.devices - 1) / shape.stages_per_device
    return shape.microbatches * (share.forward + share.backward) + fill * share.forward


def _holds(shape: Shape, share: Share) -> bool:
    are_equal = share.forward == share.input_grad == share.weight_grad
    return are_equal and shape.microbatches % shape.devices == 0


@schedule(
    name="interleaved-zb1p",
    summary="ZB-H1 over several stages per device: the least wall time at peak D",
    paper="Qi et al. 2023 (arXiv 2401.10241); torch's ScheduleInterleavedZeroBubble",
    claims=Claims(
        formula="N (F + I + W) + (D - 1) F / K, F = I = W",
        seconds=_seconds,
        peak_formula="D on every device",
        peak=lambda shape, device: shape.devices,
        holds=_holds,
    ),
    needs=[FULL_PIPE],
    stages_per_device=(1, None),
)
def interleaved_zb1p(shape: Shape) -> Program:
    devices, turns = shape.devices, shape.stages_per_device
    groups = balanced_groups(shape.microbatches, devices)
    table = Table(groups, devices=devices, stages_per_device=turns)
    lanes = [
        split_one_forward_one_backward(
            table.forward(device),
            table.backward(device),
            warmup=_warmup(shape, device),
            weight_start=device,
        )
        for device in range(devices)
    ]
    placement = Placement.looped(devices, turns)
    return Program.build("interleaved-zb1p", placement, lanes, microbatches=shape.microbatches)

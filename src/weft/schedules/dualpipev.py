"""DualPipeV: DualPipe's phases on one pipe folded into a V, with a single copy of the weights."""

from collections.abc import Iterator

from weft.cost import Share
from weft.ir.actions import Action, Pair
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.schedules.kit.eight_phases import Stream, eight_phases
from weft.schedules.kit.schedule import TWICE_FULL_PIPE, Claims, schedule
from weft.schedules.kit.shape import Shape


def _lane(device: int, shape: Shape) -> Iterator[Action | Pair]:
    return eight_phases(
        (Stream(device, 0), Stream(2 * shape.devices - 1 - device, 0)),
        place=device,
        places=shape.devices,
        length=shape.microbatches,
    )


def _seconds(shape: Shape, share: Share) -> float:
    pair = share.pair if share.pair is not None else share.forward + share.backward
    idle = pair + share.backward - 3 * share.weight_grad
    work = shape.microbatches * (share.forward + share.backward)
    return work + (shape.devices - 1) * idle / 2


def _holds(shape: Shape, share: Share) -> bool:
    is_plain = share.pair is None or share.pair == share.forward + share.backward
    return is_plain and share.forward == share.input_grad >= share.weight_grad


@schedule(
    name="dualpipev",
    summary="DualPipe folded into a V: one copy of the weights, pairs on the same device",
    paper="DeepSeek-AI 2025, DualPipe repository, after Qi et al.'s cut in half",
    claims=Claims(
        formula="N (F + B) + (D - 1)(F&B + B - 3W)/2, F = I",
        seconds=_seconds,
        peak_formula="D + 1/2 on every device",
        peak=lambda shape, device: shape.devices + 0.5,
        holds=_holds,
    ),
    needs=[TWICE_FULL_PIPE],
    stages_per_device=(2, 2),
)
def dualpipev(shape: Shape) -> Program:
    lanes = [_lane(device, shape) for device in range(shape.devices)]
    placement = Placement.wave(shape.devices)
    return Program.build("dualpipev", placement, lanes, microbatches=shape.microbatches)

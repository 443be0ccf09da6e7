"""DualPipeV: DualPipe's phases on one pipe folded into a V, with a single copy of the weights."""

from collections.abc import Iterator

from weft.cost import Share
from weft.ir.actions import Action, Pair
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.schedules.kit.eight_phases import Stream, eight_phases, idle_of, is_exact
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
    work = shape.microbatches * (share.forward + share.backward)
    return work + (shape.devices - 1) * idle_of(share) / 2


@schedule(
    name="dualpipev",
    summary="DualPipe folded into a V: one copy of the weights, pairs on the same device",
    paper="DeepSeek-AI 2025, DualPipe repository, after Qi et al.'s cut in half",
    claims=Claims(
        formula="N (F + B) + (D - 1)(F&B + B - 3W)/2, F = I",
        seconds=_seconds,
        peak_formula="D + 1/2 on every device",
        peak=lambda shape, device: shape.devices + 0.5,
        holds=is_exact,
    ),
    needs=[TWICE_FULL_PIPE],
    stages_per_device=(2, 2),
)
def dualpipev(shape: Shape) -> Program:
    lanes = [_lane(device, shape) for device in range(shape.devices)]
    placement = Placement.wave(shape.devices)
    return Program.build("dualpipev", placement, lanes, microbatches=shape.microbatches)

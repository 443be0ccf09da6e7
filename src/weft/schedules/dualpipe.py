"""DualPipe: two pipes in opposite directions, forward and backward overlapped in pairs."""

from collections.abc import Iterator

from weft.cost import Share
from weft.ir.actions import Action, Pair
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.schedules.kit.eight_phases import Stream, eight_phases, idle_of, is_exact
from weft.schedules.kit.schedule import EVEN_DEVICES, TWICE_FULL_PIPE, Claims, Need, schedule
from weft.schedules.kit.shape import Shape


def _lane(device: int, shape: Shape) -> Iterator[Action | Pair]:
    devices, each = shape.devices, shape.microbatches // 2
    down, up = Stream(device, 0), Stream(devices - 1 - device, each)
    is_first_half = device < devices // 2
    return eight_phases(
        (down, up) if is_first_half else (up, down),
        place=min(device, devices - 1 - device),
        places=devices // 2,
        length=each,
    )


def _seconds(shape: Shape, share: Share) -> float:
    work = shape.microbatches * (share.forward + share.backward)
    return work + (shape.devices // 2 - 1) * idle_of(share)


@schedule(
    name="dualpipe",
    summary="two pipes in opposite directions, F and B in pairs that hide expert communication",
    paper="DeepSeek-AI 2024, DeepSeek-V3 (arXiv 2412.19437)",
    claims=Claims(
        formula="N (F + B) + (D/2 - 1)(F&B + B - 3W), F = I",
        seconds=_seconds,
        peak_formula="D + 1 on every device",
        peak=lambda shape, device: shape.devices + 1,
        holds=is_exact,
        weight_copies=lambda shape: 2,
    ),
    needs=[
        EVEN_DEVICES,
        TWICE_FULL_PIPE,
        Need(
            "an even number of microbatches",
            lambda shape: shape.microbatches % 2 == 0,
            lambda shape: shape.but(microbatches=shape.microbatches + 1),
        ),
    ],
)
def dualpipe(shape: Shape) -> Program:
    down = tuple(range(shape.devices))
    return Program.build(
        "dualpipe",
        Placement((down, down[::-1])),
        [_lane(device, shape) for device in range(shape.devices)],
        microbatches=shape.microbatches,
        pipe_of=[0] * (shape.microbatches // 2) + [1] * (shape.microbatches // 2),
    )

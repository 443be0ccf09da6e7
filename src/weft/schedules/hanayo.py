"""Hanayo: stages in waves over the devices, backwards first."""

from weft.cost import Share
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.schedules.kit.list_order import list_order
from weft.schedules.kit.orders import breadth_first
from weft.schedules.kit.schedule import Claims, Need, schedule
from weft.schedules.kit.shape import Shape


def _seconds(shape: Shape, share: Share) -> float:
    """Whole units of D microbatches keep every device busy; the last one's gaps show."""
    devices, turns, backward = shape.devices, shape.stages_per_device, share.backward
    work = share.forward + backward
    if shape.microbatches <= devices:
        return devices * work + 2 * (shape.microbatches - 1) * backward / turns
    missing = -shape.microbatches % devices
    fill = (devices - 1 - missing) / turns
    return (shape.microbatches + missing + fill) * work


def _holds(shape: Shape, share: Share) -> bool:
    is_one_unit = shape.microbatches <= shape.devices
    return share.forward == share.backward or (is_one_unit and share.forward < share.backward)


def _peak(shape: Shape, device: int) -> float:
    """The forwards of all turns but the last, and what begins before they come back."""
    turns, unit = shape.stages_per_device, min(shape.microbatches, shape.devices)
    begun = (turns - 1) * unit + 1 + device + max(0, shape.microbatches - shape.devices)
    return min(turns * unit, begun) / turns


@schedule(
    name="hanayo",
    summary="K/2 waves of stages over the devices, backwards first; one copy of the weights",
    paper="Liu et al. 2023, Hanayo (arXiv 2308.15762); order reconstructed by list scheduling",
    claims=Claims(
        formula="F = B: (N + M + (D - 1 - M)/K)(F + B), M = -N mod D;"
        "  B > F, N <= D: D (F + B) + 2 (N - 1) B / K",
        seconds=_seconds,
        peak_formula="min(K U, (K - 1) U + 1 + d + max(0, N - D)) / K, U = min(N, D)",
        peak=_peak,
        holds=_holds,
    ),
    needs=[
        Need(
            "an even number of stages per device, two for each wave",
            lambda shape: shape.stages_per_device % 2 == 0,
            lambda shape: shape.but(stages_per_device=shape.stages_per_device + 1),
        ),
    ],
    stages_per_device=(2, None),
)
def hanayo(shape: Shape) -> Program:
    placement = Placement.wave(shape.devices, shape.stages_per_device)
    lanes = [
        breadth_first(device, placement, shape.microbatches) for device in range(shape.devices)
    ]
    program = Program.build("hanayo", placement, lanes, microbatches=shape.microbatches)
    return list_order(program, peak=shape.devices)

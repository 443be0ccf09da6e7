"""Eager 1F1B: twice the warm-up, so that a round trip's latency is hidden by other work."""

from weft.cost import Share
from weft.ir.actions import Actions
from weft.ir.kinds import Kind
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.schedules.kit.orders import one_forward_one_backward
from weft.schedules.kit.schedule import Claims, schedule
from weft.schedules.kit.shape import Shape


def _lane(device: int, shape: Shape) -> Actions:
    warmup = min(2 * (shape.devices - device - 1), shape.microbatches)
    forward = Actions.of(device, Kind.F, range(shape.microbatches))
    return one_forward_one_backward(forward, forward.replace(kind=Kind.B), warmup=warmup)


def _seconds(shape: Shape, share: Share) -> float:
    return (shape.microbatches + shape.devices - 1) * (share.forward + share.backward)


@schedule(
    name="eager-1f1b",
    summary="1F1B with twice the warm-up: a hop's latency is paid once, not every microbatch",
    paper="DAPPLE policy B (arXiv 2007.01045); Zhuang et al. 2022 (arXiv 2211.05322)",
    claims=Claims(
        formula="(N + D - 1)(F + B)",
        seconds=_seconds,
        peak_formula="min(N, 2 (D - d) - 1)",
        peak=lambda shape, device: min(shape.microbatches, 2 * (shape.devices - device) - 1),
    ),
)
def eager_1f1b(shape: Shape) -> Program:
    lanes = [_lane(device, shape) for device in range(shape.devices)]
    placement = Placement.straight(shape.devices)
    return Program.build("eager-1f1b", placement, lanes, microbatches=shape.microbatches)

"""Looped breadth-first: every microbatch through one stage before the device's next stage."""

from weft.cost import Share
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.schedules.kit.orders import breadth_first
from weft.schedules.kit.schedule import Claims, schedule
from weft.schedules.kit.shape import Shape


def _seconds(shape: Shape, share: Share) -> float:
    fill = (shape.devices - 1) / shape.stages_per_device
    return (shape.microbatches + fill) * (share.forward + share.backward)


@schedule(
    name="looped-bfs",
    summary="GPipe over several stages per device: a stage's gradients complete together",
    paper="Lamy-Poirier 2023, Breadth-First Pipeline Parallelism (arXiv 2211.05953)",
    claims=Claims(
        formula="(N + (D - 1)/K)(F + B), N >= D",
        seconds=_seconds,
        peak_formula="N",
        peak=lambda shape, device: shape.microbatches,
        holds=lambda shape, share: shape.microbatches >= shape.devices,
    ),
    stages_per_device=(1, None),
)
def looped_bfs(shape: Shape) -> Program:
    placement = Placement.looped(shape.devices, shape.stages_per_device)
    lanes = [
        breadth_first(device, placement, shape.microbatches) for device in range(shape.devices)
    ]
    return Program.build("looped-bfs", placement, lanes, microbatches=shape.microbatches)

"""Interleaved 1F1B: several stages per device in a loop, 1F1B over their virtual order."""

from weft.cost import Share
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.schedules.kit.orders import (
    Table,
    balanced_groups,
    one_forward_one_backward,
    ragged_groups,
)
from weft.schedules.kit.schedule import Claims, Need, schedule
from weft.schedules.kit.shape import Shape


def _groups(shape: Shape) -> list[int]:
    cut = ragged_groups if shape.variant == "ragged" else balanced_groups
    return cut(shape.microbatches, shape.devices)


def _warmup(shape: Shape, device: int) -> int:
    """The doubled distance to the last device hides a hop's latency; `lean` does without."""
    distance = shape.devices - device - 1
    ahead = distance if shape.variant == "lean" else 2 * distance
    group = shape.devices if shape.variant == "ragged" else _groups(shape)[0]
    loops = (shape.stages_per_device - 1) * group
    return min(ahead + loops, shape.microbatches * shape.stages_per_device)


def _seconds(shape: Shape, share: Share) -> float:
    fill = (shape.devices - 1) / shape.stages_per_device
    return (shape.microbatches + fill) * (share.forward + share.backward)


def _peak(shape: Shape, device: int) -> float:
    items = shape.microbatches * shape.stages_per_device
    return min(items, _warmup(shape, device) + 1) / shape.stages_per_device


@schedule(
    name="interleaved-1f1b",
    summary="1F1B over several stages per device: 1/K of the bubble for K times the messages",
    paper="Narayanan et al. 2021, Megatron-LM (arXiv 2104.04473)",
    claims=Claims(
        formula="(N + (D - 1)/K)(F + B)",
        seconds=_seconds,
        peak_formula="min(N K, 2 (D - 1 - d) + (K - 1) G + 1) / K, G the first group",
        peak=_peak,
        holds=lambda shape, share: shape.variant != "ragged" and shape.stages_per_device > 1,
    ),
    variants={
        "lean": "half the distance in the warm-up: peak D, but every hop's latency shows",
        "ragged": "groups of D and a shorter last one, as others do; slow, for some N cyclic",
    },
    needs=[
        Need(
            "at least as many microbatches as devices",
            lambda shape: shape.variant == "ragged" or shape.microbatches >= shape.devices,
            lambda shape: shape.but(microbatches=shape.devices),
        )
    ],
    stages_per_device=(1, None),
)
def interleaved_1f1b(shape: Shape) -> Program:
    devices, turns = shape.devices, shape.stages_per_device
    table = Table(_groups(shape), devices=devices, stages_per_device=turns)
    lanes = [
        one_forward_one_backward(
            table.forward(device), table.backward(device), warmup=_warmup(shape, device)
        )
        for device in range(devices)
    ]
    placement = Placement.looped(devices, turns)
    return Program.build("interleaved-1f1b", placement, lanes, microbatches=shape.microbatches)

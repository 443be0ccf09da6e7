"""ZBV: two stages per device in a V, split backward, no bubble inside a device's span."""

from collections.abc import Iterator
from itertools import count

from weft.cost import Share
from weft.ir.actions import Action
from weft.ir.kinds import Kind
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.schedules.kit.schedule import Claims, schedule
from weft.schedules.kit.shape import Shape


def _phases(device: int, devices: int, microbatches: int) -> list[tuple[str, int]]:
    """What a device repeats and how often; 0 is its stage on the way down, 1 on the way up."""
    below = devices - device
    steady = microbatches - (2 * below - 1) - device
    return [
        ("F0", 2 * below - 1),
        ("F1 F0", device),
        ("F1 I1 W1", below),
        ("F0 I0 W0 F1 I1 W1", steady),
        ("I0 W0 F1 I1 W1", microbatches - device - below - steady),
        ("I0 I1", device),
        ("I0 W0", below),
        ("W1", device),
        ("W0", device),
    ]


def _lane(device: int, shape: Shape) -> Iterator[Action]:
    """The lane of a pipe that is long enough, without the microbatches that are too many."""
    devices = shape.devices
    stages = (device, 2 * devices - 1 - device)
    next_of = {word: count() for word in ("F0", "F1", "I0", "I1", "W0", "W1")}
    length = max(2 * devices - 1, shape.microbatches)
    for words, repeats in _phases(device, devices, length):
        for word in words.split() * repeats:
            microbatch = next(next_of[word])
            if microbatch < shape.microbatches:
                yield Action(stages[int(word[1])], Kind[word[0]], microbatch)


def _seconds(shape: Shape, share: Share) -> float:
    fill = (shape.devices - 1) * share.forward / 2
    return shape.microbatches * (share.forward + share.backward) + fill


def _holds(shape: Shape, share: Share) -> bool:
    are_equal = share.forward == share.input_grad == share.weight_grad
    return are_equal and shape.microbatches >= 2 * shape.devices


@schedule(
    name="zbv",
    summary="two stages per device in a V: first and last stage together, peak D",
    paper="Qi et al. 2024, Pipeline Parallelism with Controllable Memory (arXiv 2405.15362)",
    claims=Claims(
        formula="N (F + I + W) + (D - 1) F / 2, F = I = W, N >= 2D; no bubble as span",
        seconds=_seconds,
        peak_formula="D on every device",
        peak=lambda shape, device: shape.devices,
        holds=_holds,
    ),
    stages_per_device=(2, 2),
)
def zbv(shape: Shape) -> Program:
    lanes = [_lane(device, shape) for device in range(shape.devices)]
    placement = Placement.wave(shape.devices)
    return Program.build("zbv", placement, lanes, microbatches=shape.microbatches)

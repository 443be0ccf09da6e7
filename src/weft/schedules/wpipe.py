"""WPipe: two groups of stages in turn, double weights for the first group only (2GW)."""

import numpy as np

from weft.cost import Share
from weft.ir.actions import Actions
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.schedules.kit.asynchronous import Run, asynchronous, one_for_one, run_length
from weft.schedules.kit.orders import Table
from weft.schedules.kit.schedule import Claims, Need, schedule
from weft.schedules.kit.shape import Shape

GROUPS = 2


def _round(shape: Shape) -> int:
    """As asked; else D where it divides n, else the least divisor of n from D - 1 on; else 0."""
    if shape.round:
        return shape.round
    sizes = [shape.devices, *range(max(1, shape.devices - 1), shape.microbatches + 1)]
    return next((size for size in sizes if shape.microbatches % size == 0), 0)


def _warmup(shape: Shape, device: int) -> int:
    distance = shape.devices - 1 - device
    return 2 * distance if shape.variant == "eager" else distance


def _versions(actions: Actions, shape: Shape) -> Actions:
    """Group 0 is stale by one update, when fresh in its first round only; group 1 never is."""
    step, index = np.divmod(actions.microbatch, shape.microbatches)
    is_stale = actions.stage < shape.devices
    if shape.variant == "fresh":
        is_stale = is_stale & (index < _round(shape))
    return actions.replace(version=np.maximum(0, step - is_stale))


def _lane(device: int, updates: int, shape: Shape) -> Actions:
    """F of group 0, F of group 1 with B of group 1, the next F of group 0 with B of group 0."""
    rounds = updates * shape.microbatches // _round(shape)
    table = Table([_round(shape)] * rounds, devices=shape.devices, stages_per_device=GROUPS)
    return one_for_one(
        _versions(table.forward(device), shape),
        _versions(table.backward(device), shape),
        warmup=_round(shape) + _warmup(shape, device),
        microbatches=shape.microbatches,
    )


def _seconds(shape: Shape, share: Share) -> float:
    return (run_length(shape) + (shape.devices - 1) / GROUPS) * (share.forward + share.backward)


def _peak(shape: Shape, device: int) -> float:
    items = GROUPS * run_length(shape)
    return min(items, _round(shape) + _warmup(shape, device) + 1) / GROUPS


def _divides(shape: Shape) -> bool:
    return _round(shape) > 0 and shape.microbatches % _round(shape) == 0


def _next_divisible(shape: Shape) -> Shape:
    size = shape.round or shape.devices
    return shape.but(microbatches=-(-shape.microbatches // size) * size)


def _is_long(shape: Shape) -> bool:
    return _round(shape) >= _warmup(shape, 0)


def _longer(shape: Shape) -> Shape:
    least = _warmup(shape, 0)
    for size in range(least, shape.microbatches + 1):
        if shape.microbatches % size == 0:
            return shape.but(round=size)
    return shape.but(round=least, microbatches=least)


@schedule(
    name="wpipe",
    summary="asynchronous, two groups of stages in turn: two versions of one, one of the other",
    paper="Yang et al. 2022, WPipe (OpenReview cw-EmNq5zfD)",
    claims=Claims(
        formula="(n T + (D - 1)/2)(F + B) for T updates, R >= D",
        seconds=_seconds,
        holds=lambda shape, share: _round(shape) >= shape.devices,
        peak_formula="(R + D - d)/2, R the round; eager (R + 2 (D - d) - 1)/2",
        peak=_peak,
    ),
    variants={
        "fresh": "only the first round of a step uses the older version",
        "eager": "a longer warm-up: latency up to a quarter of F + B hides",
    },
    needs=[
        Need("a round that divides the microbatches of an update", _divides, _next_divisible),
        Need("rounds of R >= D - 1 microbatches (eager: R >= 2 (D - 1))", _is_long, _longer),
    ],
    stages_per_device=(GROUPS, GROUPS),
    is_asynchronous=True,
    takes_round=True,
)
def wpipe(shape: Shape) -> Program:
    return asynchronous(
        "wpipe",
        Placement.looped(shape.devices, GROUPS),
        lambda device, updates: _lane(device, updates, shape),
        Run.of_steps(shape),
    )

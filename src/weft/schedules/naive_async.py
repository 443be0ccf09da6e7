"""Naive asynchronous pipelining: an update after every microbatch, one copy of the weights."""

from weft.cost import Share
from weft.ir.actions import Actions
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.schedules.kit.asynchronous import (
    Run,
    asynchronous,
    one_for_one,
    run_length,
    stale_forwards,
)
from weft.schedules.kit.schedule import Claims, schedule
from weft.schedules.kit.shape import Shape


def _lane(device: int, updates: int, shape: Shape) -> Actions:
    """Without a stash the backward of microbatch k meets the weights of all updates before k."""
    warmup = shape.devices - 1 - device
    forward = stale_forwards(device, updates, by=warmup)
    backward = stale_forwards(device, updates, by=0)
    return one_for_one(forward, backward, warmup=warmup, microbatches=1)


def _seconds(shape: Shape, share: Share) -> float:
    return (run_length(shape) + shape.devices - 1) * (share.forward + share.backward)


@schedule(
    name="naive-async",
    summary="asynchronous, no stash: backward uses newer weights than forward did",
    paper="Yang et al. 2022, WPipe (OpenReview cw-EmNq5zfD), Fig. 1b",
    claims=Claims(
        formula="(n T + D - 1)(F + B) for n T updates",
        seconds=_seconds,
        peak_formula="D - d",
        peak=lambda shape, device: min(run_length(shape), shape.devices - device),
    ),
    is_asynchronous=True,
)
def naive_async(shape: Shape) -> Program:
    return asynchronous(
        "naive-async",
        Placement.straight(shape.devices),
        lambda device, updates: _lane(device, updates, shape),
        Run.of_microbatches(shape),
        is_stashing=False,
    )

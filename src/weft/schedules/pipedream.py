"""PipeDream: an update after every microbatch, weights stashed from forward to backward."""

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
    """A microbatch uses what its stage has when its forward starts; with vertical sync, what
    the first stage had when it entered."""
    warmup = shape.devices - 1 - device
    is_vertical = shape.variant == "vertical-sync"
    forward = stale_forwards(device, updates, by=shape.devices - 1 if is_vertical else warmup)
    return one_for_one(forward, forward, warmup=warmup, microbatches=1)


def _seconds(shape: Shape, share: Share) -> float:
    return (run_length(shape) + shape.devices - 1) * (share.forward + share.backward)


@schedule(
    name="pipedream",
    summary="asynchronous, an update after every microbatch, D - s versions of the weights",
    paper="Narayanan et al. 2019, PipeDream (arXiv 1806.03377)",
    claims=Claims(
        formula="(n T + D - 1)(F + B) for n T updates",
        seconds=_seconds,
        peak_formula="D - d",
        peak=lambda shape, device: min(run_length(shape), shape.devices - device),
    ),
    variants={"vertical-sync": "every stage uses the version that the first stage used"},
    is_asynchronous=True,
)
def pipedream(shape: Shape) -> Program:
    return asynchronous(
        "pipedream",
        Placement.straight(shape.devices),
        lambda device, updates: _lane(device, updates, shape),
        Run.of_microbatches(shape),
    )

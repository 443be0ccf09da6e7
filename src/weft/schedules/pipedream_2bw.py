"""PipeDream-2BW: an update every n microbatches, double-buffered weights."""

import numpy as np

from weft.cost import Share
from weft.ir.actions import Actions
from weft.ir.kinds import Kind
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.schedules.kit.asynchronous import Run, asynchronous, one_for_one, run_length
from weft.schedules.kit.schedule import Claims, Need, schedule
from weft.schedules.kit.shape import Shape


def _warmup(shape: Shape, device: int) -> int:
    distance = shape.devices - 1 - device
    return 2 * distance if shape.variant == "eager" else distance


def _lane(device: int, updates: int, shape: Shape) -> Actions:
    """Step t uses version t - 1; where it is fresh, only until its first backward is through."""
    microbatch = np.arange(updates * shape.microbatches)
    step, index = np.divmod(microbatch, shape.microbatches)
    is_stale = index < shape.devices - 1 if shape.variant == "fresh" else np.True_
    forward = Actions.of(device, Kind.F, microbatch, version=np.maximum(0, step - is_stale))
    return one_for_one(
        forward, forward, warmup=_warmup(shape, device), microbatches=shape.microbatches
    )


def _seconds(shape: Shape, share: Share) -> float:
    return (run_length(shape) + shape.devices - 1) * (share.forward + share.backward)


@schedule(
    name="pipedream-2bw",
    summary="asynchronous, one update per n microbatches, two versions of the weights",
    paper="Narayanan et al. 2021, PipeDream-2BW (arXiv 2006.09503)",
    claims=Claims(
        formula="(n T + D - 1)(F + B) for T updates",
        seconds=_seconds,
        peak_formula="D - d; eager 2 (D - d) - 1",
        peak=lambda shape, device: min(run_length(shape), _warmup(shape, device) + 1),
    ),
    variants={
        "fresh": "only the first D - 1 microbatches of a step use the older version",
        "eager": "twice the warm-up: latency up to half of F + B hides",
    },
    needs=[
        Need(
            "n >= D - 1 microbatches per update (eager: n >= 2 (D - 1)), or a third version",
            lambda shape: shape.microbatches >= _warmup(shape, 0),
            lambda shape: shape.but(microbatches=_warmup(shape, 0)),
        )
    ],
    is_asynchronous=True,
)
def pipedream_2bw(shape: Shape) -> Program:
    return asynchronous(
        "pipedream-2bw",
        Placement.straight(shape.devices),
        lambda device, updates: _lane(device, updates, shape),
        Run.of_steps(shape),
    )

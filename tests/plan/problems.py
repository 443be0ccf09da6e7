"""Problems of equal stages, as the golden cases have them."""

from __future__ import annotations

from weft.ir.placement import Placement
from weft.plan.synthesis import Problem

Times = tuple[float, float, float, float]  # of F, I and W of each stage, and the latency

UNIT: Times = (1, 1, 1, 0)
REAL: Times = (10, 11, 8, 1)


def straight(devices: int, microbatches: int, cap: float, times: Times = UNIT) -> Problem:
    return placed(Placement.straight(devices), microbatches, cap, times)


def vee(devices: int, microbatches: int, cap: float, times: Times = UNIT) -> Problem:
    return placed(Placement.wave(devices), microbatches, cap, times)


def placed(placement: Placement, microbatches: int, cap: float, times: Times) -> Problem:
    """Every stage takes these times and counts 1."""
    forward, input_grad, weight_grad, latency = times
    return Problem(
        placement=placement,
        microbatches=microbatches,
        forward=(forward,) * placement.stages,
        input_grad=(input_grad,) * placement.stages,
        weight_grad=(weight_grad,) * placement.stages,
        held=(1,) * placement.stages,
        caps=(cap,) * placement.devices,
        latency=latency,
    )


def uneven(stage: int, factor: float) -> Problem:
    """8 devices, 16 microbatches, a cap of 8; one stage takes longer or shorter than 10."""
    lengths = tuple(10 * factor if index == stage else 10.0 for index in range(8))
    return Problem(
        placement=Placement.straight(8),
        microbatches=16,
        forward=lengths,
        input_grad=lengths,
        weight_grad=lengths,
        held=(1,) * 8,
        caps=(8,) * 8,
        latency=1,
    )

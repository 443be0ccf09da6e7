"""Times that are off: how an order does if stages take a little more or less than was thought."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from weft.cost import Cost, PerStage
from weft.errors import InputError
from weft.ir.program import Program
from weft.simulate import simulate

DRAWS = 16
SEED = 0


class Spread(NamedTuple):
    """Makespans over some draws of the times: on average, and the longest."""

    mean: float
    longest: float


def spread(program: Program, cost: Cost, fraction: float, draws: int = DRAWS) -> Spread:
    """Every time of every stage is off by a factor of its own, always the same ones."""
    if not 0 <= fraction < 1:
        raise InputError(f"times are off by a fraction from 0 to 1, without 1, not {fraction!r}")
    generator = np.random.default_rng(SEED)

    def off(seconds: PerStage) -> PerStage:
        factors = generator.uniform(1 - fraction, 1 + fraction, len(seconds))
        return tuple((np.array(seconds) * factors).tolist())

    found = []
    for _ in range(draws):
        times = replace(
            cost.times,
            forward=off(cost.times.forward),
            input_grad=off(cost.times.input_grad),
            weight_grad=off(cost.times.weight_grad),
        )
        found.append(simulate(program, replace(cost, times=times)).makespan)
    return Spread(mean=float(np.mean(found)), longest=max(found))

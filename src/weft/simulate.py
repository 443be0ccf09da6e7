"""Simulation: Program + Cost -> Timeline."""

from __future__ import annotations

import numpy as np

from weft.cost import Cost, Share
from weft.errors import ProgramError
from weft.ir.earliest import earliest
from weft.ir.program import Program
from weft.timeline import Timeline


def simulate(program: Program, cost: Cost | None = None) -> Timeline:
    """When everything happens if each action starts as early as its order and inputs allow."""
    cost = cost or Share().cost(program)
    durations = cost.durations(program)
    starts = earliest(program.precedence(cost.delays(program)), durations)
    if len(program.dependencies.missing.consumer) or not np.isfinite(starts).all():
        raise ProgramError([f"{program.name} never ends: `verify` names the action that waits"])
    return Timeline(
        program=program,
        cost=cost,
        start=starts[program.slot_of],
        end=(starts + durations)[program.slot_of],
    )

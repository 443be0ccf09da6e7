"""Periods: how a lowered program repeats, from how the program it came from does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.ir.actions import Index
from weft.ir.lanes import Period
from weft.ir.program import Program


def period_of(program: Program, *, source: Index, lane: Index, lanes: int) -> Period | None:
    """The period of actions that stand in `lane[i]` and repeat as action `source[i]` does."""
    if program.period is None:
        return None
    before = program.lane_of[source]
    position = source - program.bounds[before]
    opening = np.array(program.period.prologue)[before]
    is_prologue = position < opening
    is_body = ~is_prologue & (position < opening + np.array(program.period.body)[before])
    prologue, body = (
        tuple(np.bincount(lane[part], minlength=lanes).tolist()) for part in (is_prologue, is_body)
    )
    return replace(program.period, prologue=prologue, body=body)

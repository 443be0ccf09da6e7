"""Locks: what no forward of a stage may change, and why.

A change that a stage makes to itself is unknown to its other copies, to other stages that share the
module or the weight, and to a forward that runs again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.ir.kinds import Kind
from weft.ir.program import Program

SHARED = (
    "it is part of a module that several stages share, and would differ there. Give each stage a"
    " module of its own"
)
TIED = "other stages share it and would not see that; change it in the optimizer"
TWICE = "its backward recomputes with newer weights, and that would count twice"
NOTHING_KEPT = (
    "a stage that keeps nothing from forward to forward, such as a norm without running statistics"
)


class Locks(NamedTuple):
    """Why nothing that a stage keeps may change, or no weight, or no number in an attribute."""

    everything: str | None = None
    weights: str | None = None
    numbers: str | None = None


OPEN = Locks()


def locks_of(program: Program, stage: int, *, is_shared: bool, is_tied: bool) -> Locks:
    """Those of a stage that shares modules, or weights, with others."""
    why = SHARED if is_shared else _of_program(program, stage)
    kinds = program.actions.kind[program.actions.stage == stage]
    is_newer = not program.is_stashing and bool((kinds == Kind.R).any())
    return Locks(why, why or (TIED if is_tied else None), why or (TWICE if is_newer else None))


def _of_program(program: Program, stage: int) -> str | None:
    if len(program.placement.pipes) > 1:
        return (
            f"{program.name} keeps several copies of each stage, which would differ. Use a schedule"
            f" with one pipe, or {NOTHING_KEPT}"
        )
    if not _runs_in_order(program, stage):
        return (
            f"{program.name} runs the microbatches of this stage out of order, on which that"
            f" depends. Use another schedule, or {NOTHING_KEPT}"
        )
    return None


def _runs_in_order(program: Program, stage: int) -> bool:
    """Whether a stage, or each of its segments, takes the microbatches in order."""
    actions = program.actions
    forwards = actions.take(np.flatnonzero((actions.stage == stage) & (actions.kind == Kind.F)))
    by_segment = np.argsort(forwards.segment, kind="stable")  # each has things of its own
    is_same = np.diff(forwards.segment[by_segment]) == 0
    return bool((np.diff(forwards.microbatch[by_segment])[is_same] >= 0).all())

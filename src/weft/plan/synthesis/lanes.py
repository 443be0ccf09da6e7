"""Lanes: from starts to a program, which has no time, and from a program back to starts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from weft.ir.actions import Actions, Index
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.plan.synthesis.constraints import KINDS, Constraints, Starts
from weft.plan.synthesis.problem import Problem
from weft.plan.synthesis.squeeze import in_order
from weft.simulate import simulate


def program_of(problem: Problem, tied: Constraints, starts: Starts, name: str) -> Program:
    """The order in which every device runs its actions by these starts."""
    order = np.array(in_order(tied, starts))
    device = np.array(tied.device)[order]
    order = order[np.argsort(device, kind="stable")]
    bounds = np.searchsorted(np.sort(device), np.arange(problem.devices + 1)).tolist()
    rows, microbatch = np.divmod(order, problem.microbatches)
    kind, stage = np.divmod(rows, problem.stages)
    lanes = [
        Actions.of(stage[own], np.array(KINDS)[kind[own]], microbatch[own])
        for own in (slice(first, last) for first, last in pairwise(bounds))
    ]
    return Program.build(name, problem.placement, lanes, microbatches=problem.microbatches)


def starts_of(problem: Problem, tied: Constraints, program: Program) -> Starts | None:
    """When its actions start; None where it has others than the problem, or holds too much."""
    number = _numbers(problem, program)
    if number is None or not _fits(problem, program):
        return None
    starts = np.zeros(len(tied))
    starts[number] = simulate(program, problem.cost).start / tied.unit
    found: Starts = starts.tolist()
    return found


def _numbers(problem: Problem, program: Program) -> Index | None:
    """Which action of the problem each action of a program is."""
    actions = program.actions
    if program.placement != problem.placement or len(actions) != 3 * (
        problem.stages * problem.microbatches
    ):
        return None
    if not np.isin(actions.kind, KINDS).all() or (actions.span != 1).any():
        return None
    place = np.full(len(Kind), -1)
    place[list(KINDS)] = np.arange(len(KINDS))
    row = place[actions.kind] * problem.stages + actions.stage
    return np.asarray(row * problem.microbatches + actions.microbatch, np.int64)


def _fits(problem: Problem, program: Program) -> bool:
    """Whether no device holds more than its cap; its own order decides that."""
    amount = np.array(problem.held)[program.actions.stage]
    kind = program.actions.kind
    change = np.where(kind == Kind.F, amount, np.where(kind == Kind.W, -amount, 0.0))
    return all(
        problem.fits(lane.device, float(np.cumsum(change[first:last]).max(initial=0.0)))
        for lane, (first, last) in zip(
            program.lanes, pairwise(program.bounds.tolist()), strict=True
        )
    )

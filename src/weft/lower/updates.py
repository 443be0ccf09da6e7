"""Updates: the optimizer step of each stage, and the sum over pipes that it reads.

    device 0   compute   F0 F1 B0 B1        UPDATE
               reduce                REDUCE          where a stage has several copies
               reduce                        GATHER  where each of these updates its share

A schedule that updates between its microbatches places its updates itself.
"""

from __future__ import annotations

import numpy as np

from weft.errors import InputError
from weft.ir.actions import Action, Actions
from weft.ir.kinds import Kind
from weft.ir.lanes import Lane
from weft.ir.program import Program
from weft.lower.sums import learns, sums


def updates(program: Program, *, is_sharded: bool = False, is_replicated: bool = False) -> Program:
    """The same step with every stage that learns updated after its device's last action.

    is_sharded     each copy of a stage updates its share of the weights, and all gather them
    is_replicated  there are copies of the whole program that it does not show: gradients are
                   summed with theirs
    """
    _check_is_one_step(program)
    last_gradient = _last_gradients(program)
    lanes = program.contents()
    for device, held in enumerate(program.placement.held):
        learning = [holder for holder in held if learns(program, holder[1])]
        learning.sort(key=lambda holder: last_gradient.get(holder, -1))
        steps = Actions.collect(
            Action(stage, Kind.UPDATE, version=0, pipe=pipe) for pipe, stage in learning
        )
        lanes[Lane(device)] = Actions.concatenate([*_present(lanes, Lane(device)), steps])
    return sums(program.with_lanes(lanes), is_sharded=is_sharded, is_replicated=is_replicated)


def _check_is_one_step(program: Program) -> None:
    has_updates = np.isin(
        program.actions.kind, (Kind.UPDATE, Kind.REDUCE, Kind.FREE, Kind.GATHER)
    ).any()
    if has_updates or program.period is not None:
        raise InputError(f"{program.name} places its updates itself")
    if program.steps > 1:
        raise InputError(
            f"{program.name} has {program.steps} steps; add updates to one step, then unroll it"
        )


def _last_gradients(program: Program) -> dict[tuple[int, int], int]:
    """For each (pipe, stage), the last action that adds to its weight gradient."""
    actions = program.actions
    rows = np.flatnonzero(np.isin(actions.kind, (Kind.B, Kind.W)))
    holders = zip(actions.pipe[rows].tolist(), actions.stage[rows].tolist(), strict=True)
    return dict(zip(holders, rows.tolist(), strict=True))


def _present(lanes: dict[Lane, Actions], lane: Lane) -> list[Actions]:
    return [lanes[lane]] if lane in lanes else []

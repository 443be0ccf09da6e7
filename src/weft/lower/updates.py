"""Updates: the optimizer step of each stage, and the sum over pipes that it reads.

    device 0   compute   F0 F1 B0 B1        UPDATE
               reduce                REDUCE          where a stage has several copies

A schedule that updates between its microbatches places its updates itself.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from weft.errors import InputError
from weft.ir.actions import Action, Actions
from weft.ir.earliest import earliest
from weft.ir.graph import Backward
from weft.ir.kinds import Kind, Stream
from weft.ir.lanes import Lane
from weft.ir.program import Program


def updates(program: Program) -> Program:
    """The same step with every stage that learns updated behind its device's last action."""
    _check_is_one_step(program)
    last_gradient = _last_gradients(program)
    reduce_order = _stages_by_last_gradient(program)
    lanes = program.contents()
    for device, held in enumerate(program.placement.held):
        learning = [holder for holder in held if _learns(program, holder[1])]
        learning.sort(key=lambda holder: last_gradient.get(holder, -1))
        steps = _of_version_0(Kind.UPDATE, learning)
        lanes[Lane(device)] = Actions.concatenate([*_present(lanes, Lane(device)), steps])
        if len(program.placement.pipes) > 1 and learning:
            learning.sort(key=lambda holder: reduce_order.index(holder[1]))
            lanes[Lane(device, Stream.REDUCE)] = _of_version_0(Kind.REDUCE, learning)
    return program.with_lanes(lanes)


def _check_is_one_step(program: Program) -> None:
    has_updates = np.isin(program.actions.kind, (Kind.UPDATE, Kind.REDUCE, Kind.FREE)).any()
    if has_updates or program.period is not None:
        raise InputError(f"{program.name} places its updates itself")
    if program.steps > 1:
        raise InputError(
            f"{program.name} has {program.steps} steps; add updates to one step, then unroll it"
        )


def _learns(program: Program, stage: int) -> bool:
    return program.graph.stages[stage].backward is Backward.FULL


def _last_gradients(program: Program) -> dict[tuple[int, int], int]:
    """For each (pipe, stage), the last action that adds to its weight gradient."""
    actions = program.actions
    rows = np.flatnonzero(np.isin(actions.kind, (Kind.B, Kind.W)))
    holders = zip(actions.pipe[rows].tolist(), actions.stage[rows].tolist(), strict=True)
    return dict(zip(holders, rows.tolist(), strict=True))


def _stages_by_last_gradient(program: Program) -> list[int]:
    """One order of the stages for all devices, since a sum needs all of its copies at once."""
    slots = len(program.first_of_slot)
    delay = np.zeros(len(program.dependencies))
    start = earliest(program.precedence(delay), np.ones(slots))
    finished = np.full(program.stages, -1.0)
    rows = np.flatnonzero(np.isin(program.actions.kind, (Kind.B, Kind.W)))
    np.maximum.at(finished, program.actions.stage[rows], start[program.slot_of[rows]])
    return [int(stage) for stage in np.argsort(finished, kind="stable")]


def _of_version_0(kind: Kind, holders: Iterable[tuple[int, int]]) -> Actions:
    return Actions.collect(Action(stage, kind, version=0, pipe=pipe) for pipe, stage in holders)


def _present(lanes: dict[Lane, Actions], lane: Lane) -> list[Actions]:
    return [lanes[lane]] if lane in lanes else []

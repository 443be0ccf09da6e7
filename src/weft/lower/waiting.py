"""Waiting updates: one that waits for other devices stands where its version is first needed.

    2BW, the last device       F4 B4 F5 B5 U2  F6 B6 F7 B7 U3        version 3 is for F8
    with a norm of all stages  F4 B4 F5 B5     F6 B6 F7 B7 U2        so device 0 has time for B5

An asynchronous schedule puts an update right after the last gradient of its stage, when others
have not computed theirs. Moved, it waits only as long as the weights can be done without.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.ir.actions import COLUMNS, Actions, Index
from weft.ir.kinds import Kind
from weft.ir.lanes import Lane, Period
from weft.ir.program import Program
from weft.ir.values import Value
from weft.ir.versions import is_shared_update
from weft.lower.periods import step_of, without_epilogue

_SPARE = 8  # bodies


def in_time(program: Program, *, is_sharded: bool = False) -> Program:
    """The same with every update that waits for others in front of the first use of its version.

    Where copies share updates, and wait for nothing but each other, half-way there: what they
    gather takes as long as what they sum.

    A program that repeats does so again, after a prologue that may be longer by some bodies; a
    run too short for that is made longer by as many.
    """
    names_versions = bool((program.actions.version[program.actions.kind <= Kind.R] >= 0).any())
    if not names_versions or not is_shared_update(program).any():
        return program
    if program.period is None:
        order = np.lexsort((_places(program, is_sharded=is_sharded), program.lane_of))
        return program.with_lanes(_cut(program, program.actions.take(order), program.bounds))
    return _folded(program, is_sharded=is_sharded)


def _places(program: Program, *, is_sharded: bool) -> NDArray[np.float64]:
    """For each action, where in its lane it stands from now on; one that nobody needs, last."""
    actions, dependencies = program.actions, program.dependencies
    first_use = np.full(len(actions), np.inf)
    is_use = (dependencies.value == Value.WEIGHTS) & (actions.kind[dependencies.consumer] <= Kind.R)
    np.minimum.at(
        first_use, dependencies.producer[is_use], dependencies.consumer[is_use].astype(np.float64)
    )
    place = first_use - 0.5
    if is_sharded and not (program.ties or program.norms):
        place = np.floor((_last_gradients(program) + first_use) / 2) + 0.5
    return np.where(is_shared_update(program), place, np.arange(len(actions)))


def _last_gradients(program: Program) -> NDArray[np.float64]:
    """For each update, the last gradient in its lane that enters it; itself, where none does."""
    dependencies = program.dependencies
    last = np.zeros(len(program))
    is_near = program.lane_of[dependencies.producer] == program.lane_of[dependencies.consumer]
    rows = np.flatnonzero((dependencies.value == Value.WEIGHT_GRADIENT) & is_near)
    np.maximum.at(last, dependencies.consumer[rows], dependencies.producer[rows])
    return np.where(last > 0, last, np.arange(len(program)))


def _cut(program: Program, actions: Actions, bounds: Index) -> dict[Lane, Actions]:
    return {
        lane: actions[int(bounds[index]) : int(bounds[index + 1])]
        for index, lane in enumerate(program.lanes)
    }


class _EndlessRun(NamedTuple):
    """The lanes of an endless run, reordered, and where in each its bodies begin."""

    program: Program
    cuts: list[Index]  # per lane, from its first action


def _folded(program: Program, *, is_sharded: bool) -> Program:
    """Reorder an endless run; fold it where it repeats; end it where its steps end."""
    period, steps = program.period, program.steps
    assert period is not None
    endless = _reordered(program, bodies=3 * steps + _SPARE, is_sharded=is_sharded)
    start = max(
        _settled_from(endless.program.lane(index), cuts, period, steps + 2)
        for index, cuts in enumerate(endless.cuts)
    )
    if start > steps + 1:
        raise InputError(
            f"{program.name}: its updates would wait for other devices in an order that does not"
            " repeat. Let stages that share weights or norms use equally old versions."
        )
    steps += start * period.microbatches // program.microbatches
    is_kept = step_of(endless.program) < steps
    lanes = {
        lane: endless.program.actions.take(
            np.flatnonzero(is_kept & (endless.program.lane_of == index))
        )
        for index, lane in enumerate(program.lanes)
    }
    return program.with_lanes(
        lanes,
        period=replace(
            period,
            prologue=tuple(int(cuts[start]) for cuts in endless.cuts),
            body=tuple(int(cuts[start + 1] - cuts[start]) for cuts in endless.cuts),
            repeats=max(1, period.repeats - start),
        ),
    )


def _reordered(program: Program, *, bodies: int, is_sharded: bool) -> _EndlessRun:
    period = program.period
    assert period is not None
    endless = without_epilogue(program, bodies)
    places = _places(endless, is_sharded=is_sharded)
    order = np.lexsort((places, endless.lane_of))
    cuts = []
    for index, (first, stop) in enumerate(pairwise(endless.bounds.tolist())):
        begins = first + period.prologue[index] + period.body[index] * np.arange(bodies + 1)
        cuts.append(np.searchsorted(places[order[first:stop]], begins))
    return _EndlessRun(
        endless.with_lanes(_cut(endless, endless.actions.take(order), endless.bounds)), cuts
    )


def _settled_from(actions: Actions, cuts: Index, period: Period, bodies: int) -> int:
    """The first body of a lane from which on each is as the one before, a turn later."""
    turns = np.searchsorted(cuts, np.arange(len(actions)), "right") - 1
    first = _shifted_back(actions, period, turns)
    wanted = first[cuts[bodies] : cuts[bodies + 1]]
    for body in reversed(range(bodies)):
        if not np.array_equal(first[cuts[body] : cuts[body + 1]], wanted):
            return body + 1
    return 0


def _shifted_back(actions: Actions, period: Period, turns: Index) -> Index:
    """The columns of a lane, each action as it would be that many turns earlier."""
    columns = []
    for name in COLUMNS:
        column = getattr(actions, name).astype(np.int64)
        shift = {"microbatch": period.microbatches, "version": period.versions}.get(name, 0)
        columns.append(np.where(column >= 0, column - turns * shift, column))
    return np.stack(columns, axis=1)

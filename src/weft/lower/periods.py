"""Periods: how a lowered program repeats, and what of it a run of some steps has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from weft.ir.actions import Actions, Index
from weft.ir.kinds import EDGE_END, Kind
from weft.ir.lanes import Lane, Period
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


def taking(program: Program, is_kept: NDArray[np.bool_], lanes: Sequence[int]) -> Program:
    """The lanes of these indices with the actions that are kept; pairs stay as they are."""
    rows = [np.flatnonzero(is_kept & (program.lane_of == index)) for index in lanes]
    contents: dict[Lane, Actions] = {
        program.lanes[index]: program.actions.take(mine)
        for index, mine in zip(lanes, rows, strict=True)
    }
    place = np.repeat(np.arange(len(rows)), [*map(len, rows)])
    source = np.concatenate([np.empty(0, np.int64), *rows])
    period = period_of(program, source=source, lane=place, lanes=len(rows))
    return program.with_lanes(contents, period=period)


def without_epilogue(program: Program, bodies: int) -> Program:
    """Prologue and this many bodies of a program that repeats: what devices do, were it endless."""
    assert program.period is not None
    ends = np.add(program.period.prologue, program.period.body).tolist()
    lanes = {
        lane: program.lane(index)[:end]
        for index, (lane, end) in enumerate(zip(program.lanes, ends, strict=True))
    }
    return program.with_lanes(lanes).unrolled(bodies)


def step_of(program: Program) -> Index:
    """For each action, the step of its microbatch, or that it sums or updates by."""
    actions = program.actions
    step = actions.microbatch // program.microbatches
    is_of_weights = np.isin(actions.kind, (Kind.REDUCE, Kind.UPDATE, Kind.GATHER))
    return np.where(is_of_weights, actions.version, step).astype(np.int64)


def released(endless: Program) -> Index:
    """For each action, the step whose data its device has to have to get there.

    A sum, a gather or a transfer, on a lane of its own, needs what its values need; on one wire
    also what comes before it at either end.
    """
    needs, (sends, before) = endless.dependencies, endless.turns
    follows = np.isin(endless.actions.kind, (Kind.REDUCE, Kind.GATHER, *EDGE_END))
    enters = follows[needs.consumer]
    consumer = np.append(needs.consumer[enters], sends)
    producer = np.append(needs.producer[enters], before)
    since = _accumulated(endless, np.where(follows, 0, step_of(endless)))
    while follows.any():
        earlier = since.copy()
        np.maximum.at(since, consumer, earlier[producer])
        since = _accumulated(endless, since)
        if np.array_equal(since, earlier):
            break
    return since


def _accumulated(endless: Program, step: Index) -> Index:
    """For each action, the latest step in its lane so far."""
    parts = [np.maximum.accumulate(step[first:stop]) for first, stop in pairwise(endless.bounds)]
    return np.concatenate(parts)

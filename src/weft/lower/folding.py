"""Folding: an endless run, its wires ordered anew, as a program that repeats.

    endless     a b  c d e  c' d' e'  c" d" e" ...      a prime: a body later
    folded      a b [ c d e ] ...

Each wire repeats from wherever it does; what is left of the run's steps follows its body.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.errors import InputError
from weft.ir.actions import COLUMNS, Index
from weft.ir.earliest import Seconds
from weft.ir.lanes import Lane
from weft.ir.program import Program
from weft.lower.periods import released, step_of

_MOMENTS = 1 << 20  # of a body that count as different


def steady_keys(program: Program, times: Seconds, bodies: int) -> Index:
    """Times in an endless run of these bodies, as whole numbers that repeat exactly.

    A run settles into a cycle of one or more bodies; an action's key is when it comes on average.
    The mean of times that respect what waits for what respects it, too.
    """
    period = program.period
    assert period is not None
    sampled, turns = slice(bodies // 3, 2 * bodies // 3), np.arange(bodies)
    lengths = np.add(period.prologue, np.multiply(period.body, bodies))
    lanes = np.split(times, np.cumsum(lengths)[:-1])
    openings = [lane[:opening] for lane, opening in zip(lanes, period.prologue, strict=True)]
    tables = [
        lane[opening:].reshape(bodies, length)
        for lane, opening, length in zip(lanes, period.prologue, period.body, strict=True)
    ]
    passed = np.concatenate([table[sampled][-1] - table[sampled][0] for table in tables])
    seconds = float(np.median(passed)) / (len(turns[sampled]) - 1) if len(passed) else 0.0
    unit = (seconds or 1.0) / _MOMENTS
    keys: list[Index] = []
    for opening, table in zip(openings, tables, strict=True):
        place = (table[sampled] / unit - turns[sampled, None] * _MOMENTS).mean(axis=0)
        steady = np.rint(place).astype(np.int64) + turns[:, None] * _MOMENTS
        keys += [np.rint(opening / unit).astype(np.int64), steady.ravel()]
    return np.concatenate(keys)


def folded(program: Program, endless: Program) -> Program:
    """A program that repeats as the given one does, with the lanes of its endless run.

    Lanes that the program has repeat where they did; the others where they settle. Where one of
    these is ahead of what the program's steps reach, it has more steps.
    """
    period, step, since = program.period, step_of(endless), released(endless)
    assert period is not None
    lengths = [_length(program, endless, lane) for lane in endless.lanes]
    openings = [
        period.prologue[program.lanes.index(lane)]
        if lane in program.lanes
        else _settled_from(program, endless, since, index, lengths[index])
        for index, lane in enumerate(endless.lanes)
    ]
    more = _more_bodies(program, endless, np.add(openings, lengths))
    is_kept = step < program.steps + more * period.microbatches // program.microbatches
    return program.with_lanes(
        {
            lane: endless.actions.take(np.flatnonzero((endless.lane_of == index) & is_kept))
            for index, lane in enumerate(endless.lanes)
        },
        period=replace(
            period,
            prologue=tuple(
                opening + more * length if lane in program.lanes else opening
                for lane, opening, length in zip(endless.lanes, openings, lengths, strict=True)
            ),
            body=tuple(lengths),
            repeats=max(1, period.repeats - more),
        ),
    )


def _length(program: Program, endless: Program, lane: Lane) -> int:
    """Actions of a lane in one body; a new one has those of the lanes that it replaces."""
    assert program.period is not None
    if lane in program.lanes:
        return program.period.body[program.lanes.index(lane)]
    return sum(
        length
        for other, length in zip(program.lanes, program.period.body, strict=True)
        if other not in endless.lanes and (other.device, other.stream) == (lane.device, lane.stream)
    )


def _settled_from(program: Program, endless: Program, since: Index, lane: int, length: int) -> int:
    """The place in a lane from which on each action comes again a body later.

    So does the step whose data it needs.
    """
    period = program.period
    assert period is not None
    looked_at = 2 * len(endless.lane(lane)) // 3  # the run's end lacks what would follow
    first = int(endless.bounds[lane])
    rows = np.arange(first, first + looked_at - length)
    found, due = endless.actions.take(rows + length), endless.actions.take(rows)
    due = period.shifted(due, np.ones(len(rows), np.int64))
    differs = since[rows + length] != since[rows] + period.microbatches // program.microbatches
    for name in COLUMNS:
        differs |= getattr(due, name) != getattr(found, name)
    opening = int(np.flatnonzero(differs).max(initial=-1)) + 1
    if opening > looked_at // 2:
        raise InputError(
            f"{program.name}: its transfers come in an order that does not repeat. Order them by"
            " another cost"
        )
    return opening


def _more_bodies(program: Program, endless: Program, listed: Index) -> int:
    """Bodies by which a run is too short for what its lanes list in prologue and body."""
    assert program.period is not None
    step = step_of(endless)
    firsts = endless.bounds[:-1]
    reached = max(
        int(step[first : first + count].max(initial=0))
        for first, count in zip(firsts.tolist(), listed.tolist(), strict=True)
    )
    missing = (reached + 1 - program.steps) * program.microbatches
    return max(0, -(-missing // program.period.microbatches))

"""Orders without a flush: updates between microbatches, runs of any length folded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from weft.ir.actions import Actions
from weft.ir.kinds import Kind
from weft.ir.program import Period
from weft.schedules.kit.orders import by_slot
from weft.schedules.kit.shape import Shape

Run: TypeAlias = Callable[[int], Sequence[Actions]]


def run_length(shape: Shape) -> int:
    """Microbatches of a whole run."""
    return shape.microbatches * shape.updates


def delayed(stage: int, microbatches: int, *, by: int) -> Actions:
    """Forwards of a stage that updates after each microbatch, using weights `by` updates old."""
    microbatch = np.arange(microbatches)
    return Actions.of(stage, Kind.F, microbatch, version=np.maximum(0, microbatch - by))


def one_for_one(forward: Actions, backward: Actions, *, warmup: int, microbatches: int) -> Actions:
    """1F1B without a flush; each stage updates behind the last backward of its step.

    F F | F B F B U F B F B U | B B U        (two microbatches per step)
    """
    turns = np.arange(len(forward))
    backward = backward.replace(kind=Kind.B)
    ends = np.flatnonzero(backward.microbatch % microbatches == microbatches - 1)
    steps = backward.microbatch[ends] // microbatches
    updates = Actions.of(backward.stage[ends], Kind.UPDATE, version=steps)
    return by_slot(
        (forward, 3 * (turns - min(warmup, len(forward)))),
        (backward, 3 * turns + 1),
        (updates, 3 * turns[ends] + 2),
    )


def folded(
    run: Run, *, updates: int, fill: int, drain: int, microbatches: int
) -> tuple[Sequence[Actions], Period | None]:
    """The lanes of a run, its repetition folded: all but `fill` + `drain` updates are body.

    Each lane is cut behind its stages' updates number `fill` - 1 and `fill`. A run too short
    to repeat is written out.
    """
    repeats = updates - fill - drain
    if repeats < 1:
        return run(updates), None
    lanes = run(fill + 1 + drain)
    prologue = [_behind(lane, fill - 1) for lane in lanes]
    body = [_behind(lane, fill) - start for lane, start in zip(lanes, prologue, strict=True)]
    return lanes, Period(tuple(prologue), tuple(body), microbatches, repeats=repeats)


def _behind(lane: Actions, update: int) -> int:
    """The position behind the last of a lane's updates with this number."""
    where = np.flatnonzero((lane.kind == Kind.UPDATE) & (lane.version == update))
    return int(where[-1]) + 1

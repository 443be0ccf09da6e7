"""Asynchronous orders: updates between microbatches, runs of any length folded."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from weft.ir.actions import Actions
from weft.ir.kinds import Kind
from weft.ir.lanes import Period
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.schedules.kit.orders import by_slot
from weft.schedules.kit.shape import Shape

LaneOf: TypeAlias = Callable[[int, int], Actions]


class Run(NamedTuple):
    """How long a run is, and after how many updates it repeats and ceases to repeat."""

    updates: int
    microbatches: int  # of an update
    fill: int = 1
    drain: int = 1

    @classmethod
    def of_steps(cls, shape: Shape) -> Run:
        """An update for each step."""
        return cls(shape.updates, shape.microbatches)

    @classmethod
    def of_microbatches(cls, shape: Shape) -> Run:
        """An update for each microbatch: versions differ for as long as the pipe is deep."""
        depth = shape.devices - 1
        return cls(run_length(shape), 1, fill=max(1, depth), drain=depth)


def run_length(shape: Shape) -> int:
    """Microbatches of a whole run."""
    return shape.microbatches * shape.updates


def stale_forwards(stage: int, microbatches: int, *, by: int) -> Actions:
    """Forwards of a stage that updates after each microbatch, using weights `by` updates old."""
    microbatch = np.arange(microbatches)
    return Actions.of(stage, Kind.F, microbatch, version=np.maximum(0, microbatch - by))


def one_for_one(forward: Actions, backward: Actions, *, warmup: int, microbatches: int) -> Actions:
    """Asynchronous 1F1B; each stage updates after the last backward of its step.

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


def asynchronous(
    name: str, placement: Placement, lane: LaneOf, run: Run, *, is_stashing: bool = True
) -> Program:
    """The program of a run; `lane(device, updates)` writes the lane of a device."""
    lanes, period = _folded(lane, run, placement.devices)
    return Program.build(
        name,
        placement,
        lanes,
        microbatches=run.microbatches,
        period=period,
        is_stashing=is_stashing,
    )


def _folded(lane: LaneOf, run: Run, devices: int) -> tuple[list[Actions], Period | None]:
    """The lanes of a run, its repetition folded: all updates but those of fill and drain.

    Each lane is cut after its stages' updates number `fill` - 1 and `fill`. A run too short
    to repeat is written out.
    """
    repeats = run.updates - run.fill - run.drain
    updates = run.updates if repeats < 1 else run.fill + 1 + run.drain
    lanes = [lane(device, updates) for device in range(devices)]
    if repeats < 1:
        return lanes, None
    prologue = [_end_of(actions, run.fill - 1) for actions in lanes]
    ends = [_end_of(actions, run.fill) for actions in lanes]
    body = tuple(end - start for start, end in zip(prologue, ends, strict=True))
    return lanes, Period(tuple(prologue), body, run.microbatches, repeats=repeats)


def _end_of(lane: Actions, update: int) -> int:
    """The position after the last of a lane's updates with this number."""
    where = np.flatnonzero((lane.kind == Kind.UPDATE) & (lane.version == update))
    return int(where[-1]) + 1

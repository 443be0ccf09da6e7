"""Periods: a program that repeats can run as long as one likes, fed step by step.

    prologue   F0 F1 F2
    body       F3 B0 U  F4 B1 U  F5 B2 U ...
    end                                      B3 U  B4 U  B5 U

Its devices run prologue and body without end, each as far as the data of the steps so far reach.
Wherever a run ends, it ends with what is left of its microbatches, in the order of the body.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from weft.ir.actions import Actions, Index
from weft.ir.kinds import Kind, Stream
from weft.ir.lanes import Lane
from weft.ir.program import Program
from weft.lower.periods import period_of
from weft.notation.tokens import token, written
from weft.verify.context import Breach, Context

_COMPUTED = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.R, Kind.UPDATE)
_COMPARED = ("stage", "kind", "microbatch", "span", "version", "segment")


def periodic(context: Context) -> Iterator[Breach]:
    """The body brings as many microbatches and updates as it says, and the end follows from it."""
    if context.source.period is None:
        return
    found = list(_uneven(context))
    yield from found or _ends(context)


def in_step(context: Context) -> Iterator[Breach]:
    """What a step computes needs nothing that waits for the data of the next one."""
    if context.source.period is None:
        return
    flow = _flow(context)
    yield from _late_forwards(context, flow, released(flow))
    yield from _late_gradients(context, flow, released(flow))


def without_end(program: Program, microbatches: int) -> Program:
    """Prologue and body, as often as so many microbatches need: what devices compute, endlessly."""
    flow = _computed(program)
    period = flow.period
    assert period is not None
    ends = np.add(period.prologue, period.body).tolist()
    lanes = {
        lane: flow.lane(index)[:end]
        for index, (lane, end) in enumerate(zip(flow.lanes, ends, strict=True))
    }
    return flow.with_lanes(lanes).unrolled(1 + -(-microbatches // max(1, period.microbatches)))


def released(flow: Program) -> Index:
    """For each action, the step whose data its device has to have to get there."""
    step = _step_of(flow)
    parts = [np.maximum.accumulate(step[first:stop]) for first, stop in pairwise(flow.bounds)]
    return np.concatenate(parts)


def _uneven(context: Context) -> Iterator[Breach]:
    """Stages of whose forwards the body does not run as many as it goes on by."""
    program, period = context.source, context.source.period
    assert period is not None
    rows = np.flatnonzero(_is_body(program) & (program.actions.kind == Kind.F))
    rows = rows[program.actions.segment[rows] <= 0]
    weights = program.actions.span[rows]
    found = np.bincount(program.actions.stage[rows], weights, minlength=program.stages)
    for stage in np.flatnonzero(found != max(1, period.microbatches)).tolist():
        device = int(program.placement.table[0, stage])
        yield context.without(
            device,
            f"{stage}F",
            f"the body of device {device} runs {int(found[stage])} forwards of stage {stage} and"
            f" goes on by {period.microbatches} microbatches. Let it run each of them once.",
        )


def _ends(context: Context) -> Iterator[Breach]:
    """The first action of each lane that a longer run would not have there."""
    flow, run = _flow(context), _computed(context.program)
    step = _step_of(flow)
    for index, lane in enumerate(run.lanes):
        mine = (flow.lane_of == flow.lanes.index(lane)) & (step < context.program.steps)
        wanted, found = flow.actions.take(np.flatnonzero(mine)), run.lane(index)
        place = _first_difference(wanted, found)
        if place is not None:
            word, due = (
                written(actions.take([place]), flow.graph.edges)[0] if place < len(actions) else ""
                for actions in (found, wanted)
            )
            yield context.without(
                lane.device,
                word or due,
                f"device {lane.device} ends with {word or 'nothing'} where its body would go on"
                f" with {due or 'nothing more'}. Let the end be what the body leaves to do.",
            )


def _first_difference(one: Actions, other: Actions) -> int | None:
    common = min(len(one), len(other))
    differs = np.zeros(common, np.bool_)
    for name in _COMPARED:
        differs |= getattr(one, name)[:common] != getattr(other, name)[:common]
    if differs.any():
        return int(differs.argmax())
    return None if len(one) == len(other) else common


def _late_forwards(context: Context, flow: Program, since: Index) -> Iterator[Breach]:
    """Forwards that wait for another step's data: the step would end without its loss."""
    step = _step_of(flow)
    is_known = (flow.actions.kind == Kind.F) & (step < context.program.steps)
    for row in np.flatnonzero(is_known & (since > step)).tolist():
        device, ahead = int(flow.device_of[row]), token(flow, _first_after(flow, row, step))
        word = token(flow, row)
        yield context.without(
            device,
            word,
            f"device {device} runs {word} after {ahead}, which waits for the data of step"
            f" {since[row]}: step {step[row]} never ends. Move {word} in front of {ahead}.",
        )


def _late_gradients(context: Context, flow: Program, since: Index) -> Iterator[Breach]:
    """Gradients that are read in a step and computed in a later one."""
    consumer, producer = flow.dependencies.consumer, flow.dependencies.producer
    step = _step_of(flow)
    is_known = since[consumer] < context.program.steps
    is_forward = flow.actions.kind[producer] == Kind.F
    is_late = is_known & ~is_forward & (since[producer] > since[consumer])
    for row in np.flatnonzero(is_late).tolist():
        reader, source = token(flow, int(consumer[row])), token(flow, int(producer[row]))
        here, there = (int(flow.device_of[end[row]]) for end in (consumer, producer))
        limit = np.full_like(step, since[consumer[row]])
        ahead = token(flow, _first_after(flow, int(producer[row]), limit))
        yield context.without(
            here,
            reader,
            f"device {here} waits at {reader} for {source}, but device {there} runs that after"
            f" {ahead}, which waits for the data of the next step. On device {there}, move"
            f" {source} in front of {ahead}.",
        )


def _first_after(flow: Program, row: int, step: Index) -> int:
    """The first action in front of one in its lane that is of a later step than that one's."""
    first = int(flow.bounds[flow.lane_of[row]])
    return first + int((_step_of(flow)[first:row] > step[row]).argmax())


def _step_of(flow: Program) -> Index:
    """For each action, the step of its microbatch, or that it updates by."""
    actions = flow.actions
    step = actions.microbatch // flow.microbatches
    return np.where(actions.kind == Kind.UPDATE, actions.version, step).astype(np.int64)


def _flow(context: Context) -> Program:
    """The flow, as far as the unrolled program reaches."""
    return without_end(context.source, context.program.microbatches * context.program.steps)


def _computed(program: Program) -> Program:
    """The lanes that compute, with computations and updates alone."""
    streams = (Stream.COMPUTE, Stream.EXPERTS)
    kept = [index for index, lane in enumerate(program.lanes) if lane.stream in streams]
    is_kept = np.isin(program.actions.kind, _COMPUTED)
    rows = [np.flatnonzero(is_kept & (program.lane_of == index)) for index in kept]
    lanes: dict[Lane, Actions] = {
        program.lanes[index]: program.actions.take(mine).replace(joined=0)
        for index, mine in zip(kept, rows, strict=True)
    }
    place = np.repeat(np.arange(len(rows)), [*map(len, rows)])
    source = np.concatenate(rows)
    period = period_of(program, source=source, lane=place, lanes=len(rows))
    return program.with_lanes(lanes, period=period)


def _is_body(program: Program) -> NDArray[np.bool_]:
    """For each action, whether it stands in its lane's body."""
    assert program.period is not None
    position = np.arange(len(program)) - program.bounds[program.lane_of]
    opening = np.array(program.period.prologue)[program.lane_of]
    length = np.array(program.period.body)[program.lane_of]
    return np.asarray((position >= opening) & (position < opening + length))

"""Periods: a program that repeats can run as long as one likes, fed step by step.

    prologue   F0 F1 F2
    body       F3 B0 U  F4 B1 U  F5 B2 U ...
    end                                      B3 U  B4 U  B5 U

Its devices run prologue and body without end, each as far as the data of the steps so far reach.
Wherever a run ends, it ends with what is left of its microbatches, in the order of the body.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from weft.ir.actions import Actions, Index
from weft.ir.kinds import Kind, Stream
from weft.ir.program import Program
from weft.lower import unpaired
from weft.lower.periods import released, step_of, taking, without_epilogue
from weft.notation.tokens import token, written
from weft.verify.context import Breach, Context
from weft.verify.transfers import late_transfers

_COMPUTED = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.R, Kind.REDUCE, Kind.UPDATE, Kind.GATHER)
_COMPARED = ("stage", "kind", "microbatch", "span", "version", "pipe", "edge", "segment")


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
    endless = _endless(context)
    yield from _late_forwards(context, endless, released(endless))
    yield from _late_gradients(context, endless, released(endless))
    yield from late_transfers(context)


def without_end(program: Program, microbatches: int) -> Program:
    """Prologue and body, as often as these microbatches need: what devices compute, endlessly."""
    assert program.period is not None
    repeats = 1 + -(-microbatches // max(1, program.period.microbatches))
    return without_epilogue(_computed(program), repeats)


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
    endless, run = _endless(context), _computed(context.program)
    step = step_of(endless)
    for index, lane in enumerate(run.lanes):
        mine = (endless.lane_of == endless.lanes.index(lane)) & (step < context.program.steps)
        wanted, found = endless.actions.take(np.flatnonzero(mine)), run.lane(index)
        place = _first_difference(wanted, found)
        if place is not None:
            word, due = (
                written(actions.take([place]), endless.graph.edges)[0]
                if place < len(actions)
                else ""
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


def _late_forwards(context: Context, endless: Program, since: Index) -> Iterator[Breach]:
    """Forwards that wait for another step's data: the step would end without its loss."""
    step = step_of(endless)
    is_known = (endless.actions.kind == Kind.F) & (step < context.program.steps)
    for row in np.flatnonzero(is_known & (since > step)).tolist():
        device, ahead = (
            int(endless.device_of[row]),
            token(endless, _first_after(endless, row, step)),
        )
        word = token(endless, row)
        yield context.without(
            device,
            word,
            f"device {device} runs {word} after {ahead}, which waits for the data of step"
            f" {since[row]}: step {step[row]} never ends. Move {word} in front of {ahead}.",
        )


def _late_gradients(context: Context, endless: Program, since: Index) -> Iterator[Breach]:
    """Gradients that are read in a step and computed in a later one."""
    consumer, producer = endless.dependencies.consumer, endless.dependencies.producer
    step = step_of(endless)
    is_sum = np.isin(endless.actions.kind, (Kind.REDUCE, Kind.GATHER))
    is_known = (since[consumer] < context.program.steps) & ~is_sum[consumer]
    is_forward = endless.actions.kind[producer] == Kind.F
    is_late = is_known & ~is_forward & (since[producer] > since[consumer])
    for row in np.flatnonzero(is_late).tolist():
        late = _source_of(endless, int(producer[row]), since)
        reader, source = token(endless, int(consumer[row])), token(endless, late)
        here, there = (int(endless.device_of[end]) for end in (consumer[row], late))
        limit = np.full_like(step, since[consumer[row]])
        ahead = token(endless, _first_after(endless, late, limit))
        yield context.without(
            here,
            reader,
            f"device {here} waits at {reader} for {source}, but device {there} runs that after"
            f" {ahead}, which waits for the data of the next step. On device {there}, move"
            f" {source} in front of {ahead}.",
        )


def _source_of(endless: Program, row: int, since: Index) -> int:
    """The computation that a sum or a gather waits for longest; of what is neither, itself."""
    while endless.actions.kind[row] in (Kind.REDUCE, Kind.GATHER):
        summed = [producer for producer, _ in endless.dependencies.read_by(row)]
        row = max(summed, key=lambda producer: int(since[producer]))
    return row


def _first_after(endless: Program, row: int, step: Index) -> int:
    """The first action in front of one in its lane that is of a later step than that one's."""
    first = int(endless.bounds[endless.lane_of[row]])
    return first + int((step_of(endless)[first:row] > step[row]).argmax())


def _endless(context: Context) -> Program:
    """The endless program, as far as the unrolled program reaches."""
    return without_end(context.source, context.program.microbatches * context.program.steps)


def _computed(program: Program) -> Program:
    """The lanes that compute or sum, with computations, sums and updates alone."""
    streams = (Stream.COMPUTE, Stream.EXPERTS, Stream.REDUCE)
    kept = [index for index, lane in enumerate(program.lanes) if lane.stream in streams]
    return unpaired(taking(program, np.isin(program.actions.kind, _COMPUTED), kept))


def _is_body(program: Program) -> NDArray[np.bool_]:
    """For each action, whether it stands in its lane's body."""
    assert program.period is not None
    position = np.arange(len(program)) - program.bounds[program.lane_of]
    opening = np.array(program.period.prologue)[program.lane_of]
    length = np.array(program.period.body)[program.lane_of]
    return np.asarray((position >= opening) & (position < opening + length))

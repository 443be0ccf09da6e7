"""Sums: REDUCE actions for gradients that several devices add to, GATHER for what updates make.

    device 0   compute   F0 F1 B0 B1              UPDATE
               reduce                REDUCE                  over the copies of a stage
               reduce                       REDUCE~0         over the ends of a tied weight
               reduce                                GATHER  where each copy updates its share

One order for all devices, step by step: by when the gradients are done, a tied weight after the
stages that it is part of, and by when the updates are. So nothing waits in a circle. In a
synchronous program gathers come after all sums, in the order in which the next step begins with
the weights: its first forwards wait for the first gathers alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from weft.ir.actions import Action, Actions
from weft.ir.earliest import Seconds, earliest
from weft.ir.graph import Backward
from weft.ir.kinds import Kind, Stream
from weft.ir.lanes import Lane, Period
from weft.ir.program import Program


class _Meeting(NamedTuple):
    """What devices do together: of a tied weight, if it is one, at these stages."""

    kind: Kind
    tie: int | None
    stages: tuple[int, ...]


def sums(program: Program, *, is_sharded: bool = False, is_replicated: bool = False) -> Program:
    """The same program with the sums that its pipes and tied weights need; it has none yet.

    is_sharded     each copy of a stage updates its share of the weights, and all gather them
    is_replicated  there are copies of the whole program that it does not show
    """
    has_copies = is_replicated or len(program.placement.pipes) > 1
    order = _ordered(program, has_copies=has_copies, is_sharded=is_sharded)
    lanes, templates = program.contents(), _templates(program, order)
    for device, template in templates.items():
        steps = [template.replace(version=version) for version in range(program.steps)]
        lanes[Lane(device, Stream.REDUCE)] = Actions.concatenate(steps)
    return program.with_lanes(lanes, period=_period(program, templates))


def learns(program: Program, stage: int) -> bool:
    """Whether a stage has weights that its gradients change."""
    return program.graph.stages[stage].backward is Backward.FULL


def gathers(program: Program) -> bool:
    """Whether copies of a stage share the work of an update."""
    return bool((program.actions.kind == Kind.GATHER).any())


def _ordered(program: Program, *, has_copies: bool, is_sharded: bool) -> list[_Meeting]:
    """All that is summed and gathered, in the order of all devices."""
    found = [*_sums(program, has_copies=has_copies)]
    if has_copies and is_sharded:
        found += _gathers(program)
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


def _templates(program: Program, order: list[_Meeting]) -> dict[int, Actions]:
    """For each device that has any, what it sums and gathers in a step."""
    pipes = range(len(program.placement.pipes))
    found = {}
    for device, held in enumerate(program.placement.held):
        mine = [
            Action(stage, kind, version=0, pipe=pipe, edge=tie)
            for kind, tie, stages in order
            for pipe in pipes  # the ends of a tied weight meet on each pipe
            for stage in stages
            if (pipe, stage) in held
        ]
        if mine:
            found[device] = Actions.collect(mine)
    return found


def _sums(program: Program, *, has_copies: bool) -> Iterator[tuple[float, _Meeting]]:
    """What is summed, and when that can begin; what comes later at one time, last."""
    finished = _last_start(program, Kind.B, Kind.W)
    learning = [stage for stage in range(program.stages) if learns(program, stage)]
    for stage in learning if has_copies else ():
        yield finished[stage], _Meeting(Kind.REDUCE, None, (stage,))
    for tie, ends in enumerate(program.ties):
        held = tuple(end for end in ends if end in learning)
        yield max(finished[end] for end in ends), _Meeting(Kind.REDUCE, tie, held)


def _gathers(program: Program) -> Iterator[tuple[float, _Meeting]]:
    """What is gathered, likewise, and not before it is summed."""
    finished = _last_start(program, Kind.B, Kind.W)
    ends: dict[int | None, tuple[int, ...]] = {None: tuple(range(program.stages))}
    ends |= dict(enumerate(program.ties))
    begun = {tie: _last_start(program, Kind.UPDATE, tie=tie) for tie in ends}
    if program.period is None:
        begun = dict.fromkeys(ends, _next_start(program, max(map(max, begun.values()))))
    for stage in (one for one in range(program.stages) if learns(program, one)):
        for tie in (one for one, stages in ends.items() if stage in stages):
            summed = max(finished[end] for end in ((stage,) if tie is None else ends[tie]))
            yield max(summed, begun[tie][stage]), _Meeting(Kind.GATHER, tie, (stage,))


def _last_start(program: Program, *kinds: Kind, tie: int | None = None) -> list[float]:
    """For each stage, when its last action of these starts if every slot takes a second."""
    found, actions = np.full(program.stages, -1.0), program.actions
    is_it = np.isin(actions.kind, kinds) & (actions.edge == (-1 if tie is None else tie))
    rows = np.flatnonzero(is_it)
    np.maximum.at(found, actions.stage[rows], _starts(program)[rows])
    return [float(time) for time in found]


def _next_start(program: Program, end: float) -> list[float]:
    """For each stage, when its first forward of the next step starts, where a step ends then."""
    found = np.full(program.stages, np.inf)
    rows = np.flatnonzero(program.actions.kind == Kind.F)
    np.minimum.at(found, program.actions.stage[rows], _starts(program)[rows])
    return [end + 1 + float(time) for time in found]


def _starts(program: Program) -> Seconds:
    """When each action starts if every slot takes a second."""
    delay = np.zeros(len(program.dependencies))
    start = earliest(program.precedence(delay), np.ones(len(program.first_of_slot)))
    return np.asarray(start[program.slot_of])


def _period(program: Program, templates: dict[int, Actions]) -> Period | None:
    """A device's sums repeat with its body; the prologue has those that its updates there need."""
    period = program.period
    if period is None:
        return None
    lengths = {device: len(template) for device, template in templates.items()}
    opening = [length * _sums_before(program, device) for device, length in lengths.items()]
    body = [length * period.versions for length in lengths.values()]
    return replace(period, prologue=(*period.prologue, *opening), body=(*period.body, *body))


def _sums_before(program: Program, device: int) -> int:
    """Steps whose sums a device needs in its prologue."""
    assert program.period is not None
    index = program.lanes.index(Lane(device))
    opening = program.lane(index)[: program.period.prologue[index]]
    needs_sum = (opening.kind == Kind.UPDATE) & (
        (opening.edge >= 0) | (len(program.placement.pipes) > 1)
    )
    return int(opening.version[needs_sum].max(initial=-1)) + 1

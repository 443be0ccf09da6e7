"""Sums: REDUCE actions for gradients that several devices add to.

    device 0   compute   F0 F1 B0 B1              UPDATE
               reduce                REDUCE                  over the copies of a stage
               reduce                       REDUCE~0         over the ends of a tied weight

One order for all devices, step by step: by when the gradients are done, a tied weight after the
stages that it is part of. So nothing waits in a circle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from weft.ir.actions import Action, Actions
from weft.ir.earliest import earliest
from weft.ir.graph import Backward
from weft.ir.kinds import Kind, Stream
from weft.ir.lanes import Lane, Period
from weft.ir.program import Program


def sums(program: Program) -> Program:
    """The same program with the sums that its pipes and tied weights need; it has none yet."""
    lanes, templates = program.contents(), _templates(program)
    for device, template in templates.items():
        steps = [template.replace(version=version) for version in range(program.steps)]
        lanes[Lane(device, Stream.REDUCE)] = Actions.concatenate(steps)
    return program.with_lanes(lanes, period=_period(program, templates))


def learns(program: Program, stage: int) -> bool:
    """Whether a stage has weights that its gradients change."""
    return program.graph.stages[stage].backward is Backward.FULL


def _templates(program: Program) -> dict[int, Actions]:
    """For each device that has any, the sums of one step, in the order of all devices."""
    order, pipes = list(_order(program)), range(len(program.placement.pipes))
    found = {}
    for device, held in enumerate(program.placement.held):
        mine = [
            Action(stage, Kind.REDUCE, version=0, pipe=pipe, edge=tie)
            for tie, ends in order
            for pipe in pipes  # the ends of a tied weight meet on each pipe
            for stage in ends
            if (pipe, stage) in held
        ]
        if mine:
            found[device] = Actions.collect(mine)
    return found


def _order(program: Program) -> Iterator[tuple[int | None, tuple[int, ...]]]:
    """What is summed, one after the other: the tied weight, if it is one, and its stages."""
    finished = _last_gradients(program)
    has_copies = len(program.placement.pipes) > 1
    learning = [stage for stage in range(program.stages) if learns(program, stage)]
    stages = [(finished[stage], None, (stage,)) for stage in learning if has_copies]
    ties = [
        (max(finished[end] for end in ends), tie, tuple(end for end in ends if end in learning))
        for tie, ends in enumerate(program.ties)
    ]
    # Ties follow stages here, and sorting is stable: at one time, a tied weight comes later.
    for _, tie, ends in sorted([*stages, *ties], key=lambda each: each[0]):
        yield tie, ends


def _last_gradients(program: Program) -> list[float]:
    """For each stage, when its last gradient starts if every slot takes a second."""
    delay = np.zeros(len(program.dependencies))
    start = earliest(program.precedence(delay), np.ones(len(program.first_of_slot)))
    finished = np.full(program.stages, -1.0)
    rows = np.flatnonzero(np.isin(program.actions.kind, (Kind.B, Kind.W)))
    np.maximum.at(finished, program.actions.stage[rows], start[program.slot_of[rows]])
    return [float(time) for time in finished]


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

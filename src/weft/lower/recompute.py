"""Recompute: F keeps its input only, and R runs it again before the backward.

    gpipe               F0 F1 B0     B1
    recomputed          F0 F1 R0|B0  R1|B1      R waits for the gradient, as B does
    recomputed early    F0 F1 R0 B0  R1 B1      R may run before the gradient is there

A backward that shares its slot with a forward has its R in front of that slot either way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from weft.errors import InputError
from weft.ir.actions import Action, Actions, Pair
from weft.ir.kinds import Kind, Stream
from weft.ir.lanes import Lane
from weft.ir.program import Content, Program

_BACKWARDS = (Kind.B, Kind.I)


def recompute(program: Program, *, stages: Collection[int] | None = None) -> Program:
    """The same program with these stages (or all) recomputed once the gradient is there."""
    return _with_recomputation(program, stages, is_early=False)


def recompute_early(program: Program, *, stages: Collection[int] | None = None) -> Program:
    """The same with these stages (or all) recomputed as soon as their device gets to it."""
    return _with_recomputation(program, stages, is_early=True)


def _with_recomputation(
    program: Program, stages: Collection[int] | None, *, is_early: bool
) -> Program:
    chosen = frozenset(range(program.stages) if stages is None else stages)
    if chosen - set(range(program.stages)):
        raise InputError(f"{program.name} has stages 0 to {program.stages - 1}")
    if (program.actions.kind == Kind.R).any():
        raise InputError(f"{program.name} is recomputed already")
    if chosen & _in_segments(program):
        raise InputError(
            f"{program.name} has stages that are cut into segments, and a stage is recomputed as a"
            f" whole: recompute first, and cut what that gives, as in experts(recompute(program))"
        )
    lanes: dict[Lane, Content] = {}
    lengths: list[tuple[int, int]] = []  # of prologue and body
    for index, (lane, actions) in enumerate(program.contents().items()):
        sections = _sections(program, index, actions)
        if lane.stream is Stream.COMPUTE:
            sections = [
                Actions.collect(_lane(section, chosen, is_early=is_early)) for section in sections
            ]
        lanes[lane] = Actions.concatenate(sections)
        lengths.append((len(sections[0]), len(sections[1])))
    if program.period is None:
        return program.with_lanes(lanes)
    prologue, body = zip(*lengths, strict=True)
    return program.with_lanes(lanes, period=replace(program.period, prologue=prologue, body=body))


def _in_segments(program: Program) -> set[int]:
    """The stages that run in several segments."""
    actions = program.actions
    parts = np.stack([actions.stage, actions.segment], 1)[actions.segment >= 0]
    stages, counts = np.unique(np.unique(parts, axis=0)[:, 0], return_counts=True)
    return {*stages[counts > 1].tolist()}


def _sections(program: Program, lane: int, actions: Actions) -> list[Actions]:
    """Prologue, body and the rest; all of it is body where nothing repeats."""
    if program.period is None:
        return [actions[:0], actions, actions[:0]]
    start = program.period.prologue[lane]
    stop = start + program.period.body[lane]
    return [actions[:start], actions[start:stop], actions[stop:]]


def _lane(actions: Actions, stages: frozenset[int], *, is_early: bool) -> Iterator[Action | Pair]:
    for slot in actions.slots():
        members = [slot] if isinstance(slot, Action) else list(slot)
        again = [
            member._replace(kind=Kind.R)
            for member in members
            if member.kind in _BACKWARDS and member.stage in stages
        ]
        if again and isinstance(slot, Action) and not is_early:
            yield Pair(again[0], slot)
        else:
            yield from again
            yield slot

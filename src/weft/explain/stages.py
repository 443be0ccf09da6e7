"""Work at a stage: how much sooner all would end if one kind of it took less."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from weft.explain.costs import OFF
from weft.ir.actions import Index
from weft.ir.earliest import Seconds, earliest
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.timeline import Timeline

SAME = 1e-12  # of the time: less is rounding


class Help(NamedTuple):
    """What it would bring if every action of a kind at a stage took a tenth less."""

    kind: Kind
    stage: int
    seconds: float


def helps(timeline: Timeline) -> list[Help]:
    """Every kind of work at every stage, timed again with a tenth less; the best first."""
    program, cost = timeline.program, timeline.cost
    gaps = cost.gaps(program)
    precedence = program.precedence(cost.delays(program)).with_gaps(gaps)

    def makespan(duration: Seconds) -> float:
        return float((earliest(precedence, duration + gaps) + duration).max(initial=0.0))

    duration = (timeline.end - timeline.start)[program.first_of_slot]
    now = makespan(duration)
    found = []
    for kind, stage, rows in _groups(program):
        shorter = duration.copy()
        np.subtract.at(shorter, program.slot_of[rows], OFF * _own(program, duration, rows))
        gained = now - makespan(shorter)
        found.append(Help(kind, stage, gained if gained > SAME * now else 0.0))
    return sorted(found, key=lambda help: -help.seconds)


def _groups(program: Program) -> Iterator[tuple[Kind, int, Index]]:
    """The actions of each kind that computes, at each stage."""
    actions = program.actions
    for kind in (kind for kind in Kind if kind.is_compute):
        for stage in np.unique(actions.stage[actions.kind == kind]).tolist():
            yield kind, stage, np.flatnonzero((actions.kind == kind) & (actions.stage == stage))


def _own(program: Program, duration: Seconds, rows: Index) -> Seconds:
    """Seconds of these actions; of a pair's, half of what the pair takes."""
    in_slot = np.bincount(program.slot_of)[program.slot_of[rows]]
    return np.asarray(duration[program.slot_of[rows]] / in_slot)

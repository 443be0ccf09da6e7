"""What shortening would bring, against timing the program again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from weft.cost import Share
from weft.ir.earliest import Seconds, earliest
from weft.ir.program import Program
from weft.lower import wires
from weft.schedules import REGISTRY, Schedule, one_f_one_b
from weft.simulate import simulate
from weft.timeline import Timeline

SLOTS_TRIED = 60


def uneven(program: Program, seed: int) -> Timeline:
    """With forwards of different lengths, so that paths differ."""
    cost = Share(latency=0.1).cost(program)
    forward = np.random.default_rng(seed).uniform(0.5, 1.5, program.stages)
    times = replace(cost.times, forward=tuple(forward))
    return simulate(program, replace(cost, times=times, overhead=0.05 * seed))


def retimed(timeline: Timeline, slots: Iterable[int]) -> Seconds:
    """What each of these slots brings, one after the other."""
    program = timeline.program
    gaps = timeline.cost.gaps(program)
    precedence = program.precedence(timeline.cost.delays(program)).with_gaps(gaps)
    duration = (timeline.end - timeline.start)[program.first_of_slot]

    def makespan(seconds: Seconds) -> float:
        return float((earliest(precedence, seconds + gaps) + seconds).max())

    whole = makespan(duration)
    gained = []
    for slot in slots:
        shorter = duration.copy()
        shorter[slot] *= 0.9
        gained.append(whole - makespan(shorter))
    return np.array(gained)


@pytest.mark.parametrize("schedule", list(REGISTRY), ids=lambda schedule: schedule.name)
def test_gains_are_those_of_timing_again(schedule: Schedule) -> None:
    program = schedule(devices=4, microbatches=8)
    program = program.unrolled() if program.period else program
    for seed, lowered in enumerate((program, wires(program))):
        timeline = uneven(lowered, seed)
        first = lowered.first_of_slot
        slots = np.random.default_rng(seed).permutation(len(first))[:SLOTS_TRIED]
        assert np.allclose(timeline.gains[first[slots]], retimed(timeline, slots), atol=1e-9)


def test_only_what_is_critical_gains() -> None:
    timeline = uneven(one_f_one_b(devices=4, microbatches=8), 3)
    assert (timeline.gains > 0).any()
    assert not timeline.gains[timeline.critical_path.slack > 1e-9].any()


def test_deciders_explain_every_start() -> None:
    timeline = uneven(one_f_one_b(devices=4, microbatches=8), 1)
    decider = timeline.deciders
    waited = np.flatnonzero(decider >= 0)
    delay = timeline.start[waited] - timeline.end[decider[waited]]
    assert ((delay >= -1e-12) & (delay <= 0.1 + 1e-12)).all()
    assert (timeline.start[decider < 0] == 0).all()

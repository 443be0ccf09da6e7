"""Simulation: Program + Cost -> Timeline. Knows programs, and no schedule by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from weft.cost import Cost, Share
from weft.errors import InputError, ProgramError
from weft.ir.earliest import Seconds, earliest
from weft.ir.kinds import Stream
from weft.ir.program import Program
from weft.timeline import Bubble, Timeline

MOST_STEADY_ACTIONS = 2_000_000

__all__ = ["Steady", "Step", "simulate", "steady"]


def simulate(
    program: Program, cost: Cost | None = None, *, waits: Sequence[tuple[int, int]] = ()
) -> Timeline:
    """When everything happens if each action starts as early as its order and inputs allow.

    Each of `waits` is two actions: the first waits for the end of the second besides.
    """
    cost = cost or Share().cost(program)
    durations, gaps = cost.durations(program), cost.gaps(program)
    precedence = program.precedence(cost.delays(program)).with_gaps(gaps)
    if waits:
        later, sooner = program.slot_of[np.array(waits).T]
        precedence = precedence.with_waits(later, sooner)
    starts = earliest(precedence, durations + gaps)
    if len(program.dependencies.missing.consumer) or not np.isfinite(starts).all():
        raise ProgramError([f"{program.name} never ends: `verify` names the action that waits"])
    starts = _with_late_onloads(program, starts, durations)
    return Timeline(
        program=program,
        cost=cost,
        start=starts[program.slot_of],
        end=(starts + durations)[program.slot_of],
    )


def _with_late_onloads(program: Program, starts: Seconds, durations: Seconds) -> Seconds:
    """What comes back from the host comes as late as its reader allows."""
    if not any(lane.stream is Stream.ONLOAD for lane in program.lanes):
        return starts
    starts, dependencies = starts.copy(), program.dependencies
    needed = np.full(len(starts), np.inf)
    slots = program.slot_of[dependencies.producer]
    np.minimum.at(needed, slots, starts[program.slot_of[dependencies.consumer]])
    for index, lane in enumerate(program.lanes):
        if lane.stream is Stream.ONLOAD:
            clock = np.inf
            for slot in program.slots_of(index)[::-1].tolist():
                clock = min(clock, float(needed[slot])) - durations[slot]
                starts[slot] = clock = max(clock, float(starts[slot]))
    return starts


class Steady(NamedTuple):
    """What a periodic program settles into: seconds per update and the bubble, over one cycle."""

    period: float
    bubble: float


def steady(program: Program, cost: Cost | None = None) -> Steady:
    """The steady state of a periodic program.

    An order that repeats settles into a cycle of one or more repetitions (2BW on 4 devices with
    latency: 15.6, 15.8, 15.8, 15.8 seconds, repeated); the period is the cycle's average.
    """
    if program.period is None:
        raise InputError(f"{program.name} does not repeat, so it has no steady state")
    repeats = 16
    while True:
        timeline = simulate(program.unrolled(repeats), cost)
        lanes = repetitions(program, timeline.program, timeline.start, repeats)
        starts = np.concatenate([*lanes], axis=1)
        cycle = _cycle(starts)
        if cycle is not None:
            period = float(starts[-1, 0] - starts[-1 - cycle, 0]) / cycle
            break
        if repeats * len(program) > MOST_STEADY_ACTIONS:
            raise InputError(f"{program.name} does not settle within {repeats} repetitions")
        repeats *= 2
    work = _body_work(program, timeline)
    return Steady(period, 1.0 - work / (program.devices * period) if period else 0.0)


class Step(NamedTuple):
    """What timelines are compared by: these microbatches, once settled if asynchronous.

    A run of 32 updates and a step of 8 microbatches differ in their lengths alone; for
    as many microbatches of each, the times are alike.
    """

    microbatches: int
    settled: Steady | None = None

    @classmethod
    def of(cls, timeline: Timeline) -> Step:
        """What the program itself calls a step."""
        return cls(timeline.program.microbatches // timeline.program.parts)

    def share(self, timeline: Timeline) -> float:
        """Of all that a timeline does, how much belongs to a step."""
        program = timeline.program
        return self.microbatches * program.parts / (program.microbatches * program.steps)

    def seconds(self, timeline: Timeline) -> float:
        """Of a step; of a run that is not known to settle, on average."""
        share = self.share(timeline)
        if self.settled is None:
            return timeline.makespan * share
        return self.settled.period * timeline.program.steps * share

    def bubble(self, timeline: Timeline) -> Bubble:
        """Idle shares; once settled, no barrier ends a step."""
        if self.settled is None:
            return timeline.bubble
        return Bubble(self.settled.bubble, self.settled.bubble)


def repetitions(
    program: Program, unrolled: Program, figures: Seconds, repeats: int
) -> Iterator[Seconds]:
    """Of each lane, figures of its actions in every repetition of the body: [repetition, action].

    The figures are those of all actions of the unrolled program, one or several of each.
    """
    assert program.period is not None
    for index, first in enumerate(unrolled.bounds[:-1].tolist()):
        opening, length = program.period.prologue[index], program.period.body[index]
        body = slice(first + opening, first + opening + length * repeats)
        yield figures[body].reshape(repeats, length, *figures.shape[1:])


def _cycle(starts: Seconds) -> int | None:
    """The fewest repetitions after which all starts have moved by the same time, if any."""
    repeats = len(starts)
    tolerance = 1e-9 * max(1.0, float(starts[-1].max()))
    for cycle in range(1, repeats // 3 + 1):
        moved = starts[-2 * cycle :] - starts[-3 * cycle : -cycle]
        if np.ptp(moved) <= tolerance:
            return cycle
    return None


def _body_work(program: Program, timeline: Timeline) -> float:
    """Busy seconds of one repetition on all compute streams."""
    assert program.period is not None
    work = 0.0
    for index, lane in enumerate(program.lanes):
        if lane.stream is Stream.COMPUTE:
            first = int(timeline.program.bounds[index]) + program.period.prologue[index]
            rows = np.arange(first, first + program.period.body[index])
            rows = rows[timeline.program.actions.joined[rows] == 0]
            work += float((timeline.end - timeline.start)[rows].sum())
    return work

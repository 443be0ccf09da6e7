"""The Timeline and its plain figures; causes, memory and critical path have their own files."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from weft.cost import Cost, Provenance
from weft.ir.actions import Column, Index
from weft.ir.earliest import Seconds, earliest
from weft.ir.kinds import Kind, Stream
from weft.ir.program import Program
from weft.timeline.critical import (
    CriticalPath,
    binding_dependency,
    critical_path,
    deciders,
    tails,
)
from weft.timeline.gains import Paths, gains
from weft.timeline.idle import CAUSES, Cause, Idle, Stretches, idle_stretches
from weft.timeline.memory import Usage, peak_activations, usage

ROUNDING = 1e-9  # of a makespan


class Bubble(NamedTuple):
    """The fraction of device time that is idle within the window.

    wall  the window is the makespan of all devices: a barrier ends the step
    span  the window is the longest device's own first start to last end: steps overlap
    """

    wall: float
    span: float


@dataclass(frozen=True, eq=False)
class Timeline:
    """Start and end of every action of a program."""

    program: Program
    cost: Cost
    start: Seconds = field(repr=False)
    end: Seconds = field(repr=False)
    is_measured: bool = False

    @cached_property
    def makespan(self) -> float:
        """From the first start to the last end."""
        return float(self.end.max() - self.start.min()) if len(self.end) else 0.0

    @cached_property
    def device_work(self) -> Seconds:
        """Busy seconds of each device's compute stream."""
        work = np.zeros(self.program.devices)
        np.add.at(work, self._device_of_slot, self._slot_end - self._slot_start)
        return work

    @cached_property
    def device_spans(self) -> Seconds:
        """From each device's first start to its last end, compute only."""
        first = np.full(self.program.devices, np.inf)
        last = np.full(self.program.devices, -np.inf)
        np.minimum.at(first, self._device_of_slot, self._slot_start)
        np.maximum.at(last, self._device_of_slot, self._slot_end)
        return np.asarray(np.maximum(last - first, 0.0))

    @cached_property
    def bubble(self) -> Bubble:
        """How much of the devices' time is idle, by both windows."""
        wall_window = self.program.devices * self.makespan
        span_window = float(self.device_spans.max())
        return Bubble(
            wall=_idle_fraction(float(self.device_work.sum()), wall_window),
            span=_idle_fraction(float(self.device_work.max()), span_window),
        )

    @cached_property
    def peak_activations(self) -> list[float]:
        """For each device, most microbatches between F and B (or W), in device shares."""
        return peak_activations(self.program, self.start, self.end)

    @cached_property
    def memory(self) -> Usage:
        """Bytes on each device over time, by category."""
        return usage(self.program, self.cost, self.start, self.end)

    @cached_property
    def idle(self) -> list[Idle]:
        """Every idle stretch of every compute stream, and its cause."""
        return self.stretches.listed()

    @cached_property
    def stretches(self) -> Stretches:
        """The same in columns, which is far quicker where there are thousands."""
        return idle_stretches(self.program, self.cost, self._binding, self.start, self.end)

    @cached_property
    def exposed_communication(self) -> list[float]:
        """For each device, the seconds it waits for a wire."""
        sums = self.stretches.sums(self.program.devices)
        exposed: list[float] = sums[:, CAUSES.index(Cause.WIRE)].tolist()
        return exposed

    @cached_property
    def provenance(self) -> dict[Provenance, float]:
        """How the seconds of all actions are known, the surest first, in shares of 1."""
        if self.is_measured or not self.cost.provenance:
            return {Provenance.MEASURED if self.is_measured else Provenance.GIVEN: 1.0}
        in_slot = np.bincount(self.program.slot_of)[self.program.slot_of]
        seconds = (self.end - self.start) / in_slot
        marks = self.cost.provenance_of(self.program)
        known = {mark: float(seconds[marks == mark].sum()) for mark in Provenance}
        total = sum(known.values())
        return {mark: part / total for mark, part in known.items() if part}

    @cached_property
    def critical_path(self) -> CriticalPath:
        """The chain of actions that decides the makespan, and the slack of all others."""
        return critical_path(self.program, self.deciders, self._tails, self.end)

    @cached_property
    def deciders(self) -> Index:
        """For each action, the one after whose end it started: before it in its lane, or read.

        -1 where nothing held it back.
        """
        return deciders(self.program, self.cost, self._binding, self._deciding_ends)

    @cached_property
    def gains(self) -> Seconds:
        """For each action, how much sooner all would end if it alone took a tenth less."""
        return gains(self.program, self.cost, Paths(self._heads, self._durations, self._tails))

    @cached_property
    def _binding(self) -> Index:
        """For each slot, the dependency whose value arrives last; -1 where it reads none."""
        delays = self.cost.delays(self.program)
        return binding_dependency(self.program, delays, self._deciding_ends)

    @cached_property
    def _deciding_ends(self) -> Seconds:
        """When actions end, for whoever waits for them: what comes back from the host, as late as
        its reader allows, holds that up only where it ends later than all else that it waits for.
        """
        is_load = self.program.actions.kind == Kind.ONLOAD
        return np.where(is_load, self.end - ROUNDING * self.makespan, self.end)

    @cached_property
    def _durations(self) -> Seconds:
        """Of every slot."""
        return (self.end - self.start)[self.program.first_of_slot]

    @cached_property
    def _heads(self) -> Seconds:
        """When each slot starts at the earliest; what comes back from the host starts later."""
        if any(lane.stream is Stream.ONLOAD for lane in self.program.lanes):
            gaps = self.cost.gaps(self.program)
            precedence = self.program.precedence(self.cost.delays(self.program)).with_gaps(gaps)
            return earliest(precedence, self._durations + gaps)
        return np.asarray(self.start - self.start.min(initial=np.inf))[self.program.first_of_slot]

    @cached_property
    def _tails(self) -> Seconds:
        """From the latest end of each slot to the last of all."""
        precedence = self.program.precedence(self.cost.delays(self.program))
        return tails(precedence, self.cost.gaps(self.program), self._durations)

    @cached_property
    def _slots(self) -> Index:
        """First action of every slot on a compute stream."""
        first = self.program.first_of_slot
        return first[self.program.is_on_compute[self.program.lane_of[first]]]

    @cached_property
    def _device_of_slot(self) -> Column:
        return self.program.device_of[self._slots]

    @cached_property
    def _slot_start(self) -> Seconds:
        return self.start[self._slots]

    @cached_property
    def _slot_end(self) -> Seconds:
        return self.end[self._slots]


def _idle_fraction(work: float, window: float) -> float:
    return 1.0 - work / window if window > 0 else 0.0

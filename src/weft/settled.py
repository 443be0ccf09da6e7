"""Settled: runs of asynchronous schedules that are long enough to show what they settle into."""

from __future__ import annotations

from weft.ir.program import Program
from weft.schedules import Schedule, Shape


def settling(schedule: Schedule, shape: Shape) -> Program:
    """A run of an asynchronous schedule, long enough to settle."""
    return schedule.program(shape.but(updates=2 * shape.devices + 2))

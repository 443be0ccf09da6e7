"""Units of a timeline: for its times and for what its devices hold.

Unit costs are numbers without a unit: a share of a device, not a second. Times are seconds where
they were measured, or where the cost says how it knows them.
"""

from __future__ import annotations

import math

from weft.cost.units import BYTES, NONE, SECONDS, Unit, fitting
from weft.timeline import Timeline

__all__ = ["Unit", "is_physical", "memory_unit", "round_times", "time_unit"]


def is_physical(timeline: Timeline) -> bool:
    """Whether its times are seconds, and its sizes bytes."""
    return timeline.is_measured or bool(timeline.cost.provenance)


def time_unit(timeline: Timeline) -> Unit:
    """The unit of a timeline's times."""
    return fitting(timeline.makespan, SECONDS) if is_physical(timeline) else NONE


def memory_unit(timeline: Timeline) -> Unit:
    """The unit of what devices hold."""
    if not is_physical(timeline):
        return NONE
    return fitting(max(timeline.memory.peaks), BYTES)


def round_times(start: float, end: float, *, least: float) -> list[float]:
    """Round numbers from `start` to `end`, `least` or more apart: 0, 5, 10."""
    power = 10.0 ** math.floor(math.log10(least))
    steps = [factor * power for factor in (1, 2, 5, 10)]
    step = next(step for step in steps if step >= least * (1 - 1e-9))
    first = math.ceil(start / step - 1e-9)
    return [tick * step for tick in range(first, int(end / step + 1e-9) + 1)]

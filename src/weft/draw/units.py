"""Units: seconds and bytes in numbers that people read.

Unit costs are numbers without a unit: a share of a device, not a second. Times are seconds where
they were measured, or where the cost says how it knows them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from weft.timeline import Timeline


class Unit(NamedTuple):
    """A name, and how many seconds or bytes one of it is."""

    name: str = ""
    size: float = 1.0

    def number(self, value: float) -> str:
        """Four digits of seconds or bytes in this unit; six where it is none."""
        if not self.name:
            return f"{value:.6g}"
        digits = f"{round(value / self.size, 4):.4g}"
        return digits if "e" not in digits else f"{value / self.size:.0f}"

    def amount(self, value: float) -> str:
        """The number and the unit."""
        return f"{self.number(value)} {self.name}".rstrip()


NONE = Unit()
SECONDS = (Unit("s", 1.0), Unit("ms", 1e-3), Unit("us", 1e-6), Unit("ns", 1e-9))
BYTES = (Unit("GiB", 2.0**30), Unit("MiB", 2.0**20), Unit("KiB", 2.0**10), Unit("bytes", 1.0))


def fitting(value: float, units: tuple[Unit, ...]) -> Unit:
    """The largest unit of which there is one at least."""
    return next((unit for unit in units if value >= unit.size), units[0 if not value else -1])


def is_physical(timeline: Timeline) -> bool:
    """Whether its times are seconds, and its sizes bytes."""
    return timeline.is_measured or bool(timeline.cost.provenance)


def time_unit(timeline: Timeline) -> Unit:
    """The unit in which to tell the times of a timeline."""
    return fitting(timeline.makespan, SECONDS) if is_physical(timeline) else NONE


def memory_unit(timeline: Timeline) -> Unit:
    """The unit in which to tell what devices hold."""
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

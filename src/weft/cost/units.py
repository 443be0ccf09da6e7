"""Units: seconds and bytes in numbers that people read."""

from __future__ import annotations

from typing import NamedTuple


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

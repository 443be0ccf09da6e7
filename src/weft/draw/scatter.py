"""Scatters: points of time and memory as a picture, in the terminal or as SVG.

Knows points with names, a line through some of them and a limit; knows no plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.cost.units import BYTES, SECONDS, Unit, fitting

SLOW = 1.6  # times the fastest: what is slower is left out of the picture
WIDE = 3.0  # times as far from the leanest as the best dots: the axis of memory ends there


@dataclass(frozen=True, slots=True)
class Dot:
    """A point, by seconds and bytes; `is_joined` where a line goes through it."""

    seconds: float
    bytes: float
    name: str
    is_joined: bool = False


@dataclass(frozen=True, slots=True)
class Scatter:
    """Dots, what is above them, and the bytes of a device, where they are limited."""

    title: str
    dots: tuple[Dot, ...]
    limit: float = float("inf")

    @property
    def shown(self) -> tuple[Dot, ...]:
        """Without what is far slower than the rest."""
        fastest = min((dot.seconds for dot in self.dots), default=0.0)
        return tuple(dot for dot in self.dots if dot.seconds <= SLOW * fastest)

    @property
    def left_out(self) -> int:
        return len(self.dots) - len(self.shown)

    @property
    def best(self) -> tuple[Dot, ...]:
        """Dots than which none has less of both, the leanest first."""
        found: list[Dot] = []
        for dot in sorted(self.shown, key=lambda dot: (dot.bytes, dot.seconds)):
            if not found or dot.seconds < found[-1].seconds:
                found.append(dot)
        return tuple(found)

    @property
    def edge(self) -> float:
        """Bytes at which the axis of memory ends; some schedules hold far more than the rest."""
        sizes = [dot.bytes for dot in self.shown] or [0.0]
        least, most = min(sizes), max((dot.bytes for dot in self.best), default=0.0)
        end = least + WIDE * (most - least)
        return end if least < end < max(sizes) else max(sizes)

    @property
    def beyond(self) -> tuple[Dot, ...]:
        """Dots that hold more than that; they are drawn at its end."""
        return tuple(dot for dot in self.shown if dot.bytes > self.edge)

    @property
    def schedules(self) -> Scatter:
        """Without the line."""
        return replace(self, dots=tuple(dot for dot in self.dots if not dot.is_joined))

    @property
    def units(self) -> tuple[Unit, Unit]:
        """Of time and of memory."""
        time = fitting(max((dot.seconds for dot in self.shown), default=1.0), SECONDS)
        size = fitting(max((dot.bytes for dot in self.shown), default=1.0), BYTES)
        return time, size

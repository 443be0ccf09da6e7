"""Levels: what a device holds over time, by category, under its row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.draw.look import Look
from weft.draw.svg.elements import element, text
from weft.draw.svg.frame import SMALL, Frame, Strip
from weft.draw.units import memory_unit
from weft.timeline import Category, Timeline

Pixels: TypeAlias = NDArray[np.float64]

TICK = 4.0
NEAR = 1.5  # of what a device holds: a capacity that is drawn
LIMIT = "#d55e00"
LEVELS = {  # of the theme's colour: what stays throughout darker than what comes and goes
    Category.WEIGHTS: 1.0,
    Category.GRADIENTS: 0.85,
    Category.OPTIMIZER: 0.7,
    Category.ACTIVATIONS: 0.5,
    Category.INPUTS: 0.35,
    Category.BUFFERS: 0.2,
}


def levels(timeline: Timeline, frame: Frame, look: Look) -> Iterator[str]:
    """A strip for each device, all on one scale, with the most that it holds."""
    capacity, unit = timeline.cost.memory.capacity, memory_unit(timeline)
    peaks = timeline.memory.peaks
    is_near = capacity <= NEAR * max(peaks)
    top = max(*peaks, capacity) if is_near else max(peaks)
    for strip in frame.strips:
        yield from _strip(timeline, frame, strip, look, top)
        peak = peaks[strip.device]
        yield from _at_peak(unit.amount(peak), frame, strip, peak / top if top > 0 else 0.0)
        if is_near:
            y = strip.top + strip.height * (1 - capacity / top)
            path = f"M{frame.left:.1f} {y:.1f}H{frame.right:.1f}"
            yield element("path", d=path, stroke=LIMIT, stroke_dasharray="4 3", fill="none")


def _at_peak(words: str, frame: Frame, strip: Strip, level: float) -> Iterator[str]:
    """A tick and words at the height of the most that a device holds, within its strip."""
    y = strip.top + strip.height * (1 - level)
    path = f"M{frame.left - TICK:.1f} {y:.1f}H{frame.left:.1f}"
    yield element("path", d=path, stroke="currentColor", fill="none")
    baseline = max(y + 0.35 * SMALL, strip.top + 0.75 * SMALL)
    baseline = min(baseline, strip.top + strip.height - 2)
    yield text(words, frame.left - 6, baseline, text_anchor="end", font_size=SMALL)


def _strip(timeline: Timeline, frame: Frame, strip: Strip, look: Look, top: float) -> Iterator[str]:
    """Categories on each other, a column to a pixel."""
    columns = np.arange(frame.left, frame.right)
    opening = float(timeline.start.min()) + frame.window.start
    times = opening + (columns + 0.5 - frame.left) / frame.per_second
    below = np.zeros(len(columns))
    for category, curve in timeline.memory.curves[strip.device].items():
        above = below + curve.levels[np.searchsorted(curve.times, times, "right") - 1]
        if top > 0 and (above > below).any():
            area = _area(strip, columns, below / top, above / top)
            yield element("path", d=area, fill=look.theme.level.code, fill_opacity=LEVELS[category])
        below = above


def _area(strip: Strip, columns: Pixels, below: Pixels, above: Pixels) -> str:
    """What lies between two lines of steps."""
    there = _steps(strip, columns, above)
    back = _steps(strip, columns, below)[::-1]
    points = " ".join(f"{x:g},{y:.2f}" for x, y in there + back)
    return f"M{points}Z"


def _steps(strip: Strip, columns: Pixels, level: Pixels) -> list[tuple[float, float]]:
    """Both ends of every stretch of one height."""
    edges = np.flatnonzero(np.diff(level)) + 1
    starts, ends = [0, *edges.tolist()], [*edges.tolist(), len(level)]
    points = []
    for start, end in zip(starts, ends, strict=True):
        y = strip.top + strip.height * (1 - float(level[start]))
        points += [(float(columns[start]), y), (float(columns[end - 1]) + 1, y)]
    return points

"""Grid: a timeline in columns of equal length, for everything drawn in characters.

Knows which slot fills which column; knows neither letters nor colours.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np

from weft.draw.bands import Band, shown_ends
from weft.draw.window import Panel
from weft.ir.actions import Index
from weft.ir.earliest import Seconds
from weft.timeline import Timeline

IDLE = -1


class Cell(NamedTuple):
    """Neighbouring columns of one slot, or of none (IDLE)."""

    slot: int
    width: int


@dataclass(frozen=True, slots=True)
class Grid:
    """`columns` columns, `per_second` of them to a second, the first at time `opening`."""

    columns: int
    per_second: float
    opening: float = 0.0

    def rows(self, timeline: Timeline, bands: list[Band]) -> list[Index]:
        """For each band, the slot in the middle of each column."""
        middles = self.opening + (np.arange(self.columns, dtype=np.float64) + 0.5) / self.per_second
        ends = shown_ends(timeline)
        rows = []
        for band in bands:
            row = np.full(len(middles), IDLE)
            for slots in band.lanes:
                row = np.where(row == IDLE, _busy(timeline, ends, slots, middles), row)
            rows.append(row)
        return rows


def _busy(timeline: Timeline, ends: Seconds, slots: Index, middles: Seconds) -> Index:
    """The slot of a lane at each of these times, or IDLE."""
    first = timeline.program.first_of_slot[slots]
    latest = np.searchsorted(timeline.start[first], middles, "right") - 1
    is_busy = (latest >= 0) & (middles < ends[first][latest])
    return np.where(is_busy, slots[latest], IDLE)


def cells(row: Index) -> list[Cell]:
    """A row as cells, from left to right."""
    return [Cell(slot, len(list(columns))) for slot, columns in groupby(row.tolist())]


def fit(timeline: Timeline, panels: list[Panel], *, room: int, widest: int) -> list[Grid]:
    """For each panel a grid, all of one scale: the largest within `room` columns.

    An ordinary action gets at most `widest`. Where all times are multiples of a quantum, so are
    the columns, and equal actions are equally wide.
    """
    if timeline.makespan <= 0:
        return [Grid(columns=0, per_second=1.0) for _ in panels]
    opening, longest = float(timeline.start.min()), max(panel.window.length for panel in panels)
    scale = min(room / longest, widest / usual_shortest(timeline))
    quantum = _quantum(np.concatenate([timeline.start, timeline.end]) - opening)
    if scale * quantum >= 1:
        scale = int(scale * quantum + 1e-6) / quantum
    return [
        Grid(max(1, round(scale * window.length)), scale, opening + window.start)
        for _, window in panels
    ]


def usual_shortest(timeline: Timeline) -> float:
    """The length of a short computation, but for a few that are shorter still."""
    program = timeline.program
    lengths = (timeline.end - timeline.start)[program.is_on_compute[program.lane_of]]
    lengths = lengths[lengths > 0]
    return float(np.quantile(lengths, 0.1)) if len(lengths) else max(timeline.makespan, 1.0)


def _quantum(times: Seconds) -> float:
    """The length of which all times are multiples; 0 where there is none."""
    gaps = np.diff(np.unique(times))
    shortest = float(gaps[gaps > 1e-9 * times.max()].min())
    parts = times / shortest
    is_whole = bool(np.abs(parts - np.rint(parts)).max() < 1e-3)
    return shortest if is_whole else 0.0

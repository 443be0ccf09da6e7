"""Frame: where everything stands on the paper, in pixels.

┌ title, figures ──────────────┐  head
│ 0 ████████████████           │  a row for each band
│   ▁▂▃▃▂▁                     │  a strip of memory for each device, where asked for
│ 1 ████████████████           │
│   0    5    10    time       │  axis
└ legend ──────────────────────┘  foot
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from weft.draw.bands import Band
from weft.draw.grid import usual_shortest
from weft.draw.look import Look
from weft.draw.svg.elements import width_of
from weft.draw.units import memory_unit
from weft.draw.view import View
from weft.draw.window import Panel, Window
from weft.errors import InputError
from weft.timeline import Timeline

MARGIN = 12.0
SIZE, SMALL = 11.0, 9.0  # font sizes of all that is no label
TITLE = 15.0
LINE = 16.0  # from line to line
AXIS = 34.0
NAME = 18.0  # of a panel
ASIDE = 16.0  # for the word `device`
NARROWEST, WIDEST = 420.0, 1160.0  # of the rows, where no size is asked for
TALLEST = 900.0  # of all rows together, likewise
ROW, PAIRED_ROW, STREAM_ROW, STRIP = 26.0, 38.0, 20.0, 30.0
LEAST_ROW, LEAST_WIDTH = 2.0, 60.0
GAP = 0.14  # between rows, of their height


@dataclass(frozen=True, slots=True)
class Row:
    """A band on the paper."""

    band: Band
    top: float
    height: float


@dataclass(frozen=True, slots=True)
class Strip:
    """The memory of a device on the paper."""

    device: int
    top: float
    height: float


@dataclass(frozen=True, slots=True)
class Frame:
    """The paper, and the rows and the time axis of one of its panels."""

    width: float
    height: float
    left: float
    right: float
    panel: Panel
    rows: tuple[Row, ...]
    strips: tuple[Strip, ...]
    top: float  # of the rows
    bottom: float  # of the rows

    @property
    def window(self) -> Window:
        return self.panel.window

    @property
    def room(self) -> float:
        return self.right - self.left

    @property
    def per_second(self) -> float:
        return self.room / self.window.length if self.window.length > 0 else 0.0

    def x(self, time: float) -> float:
        """Where a time since the first start stands."""
        return self.left + (time - self.window.start) * self.per_second


@dataclass(frozen=True, slots=True)
class Wanted:
    """How much room head and foot take at a width: lines above, lines below."""

    head: float
    foot: float


def paper_width(timeline: Timeline, view: View, look: Look, label: float) -> float:
    """As asked for, or wide enough for a label in an ordinary action."""
    bands = view.bands(timeline)
    if look.size.width is not None:
        return look.size.width
    longest = max(panel.window.length for panel in view.panels(timeline))
    rows = longest / usual_shortest(timeline) * label
    return round(min(max(rows, NARROWEST), WIDEST) + _left(timeline, bands, look) + MARGIN)


def frames(timeline: Timeline, view: View, look: Look, width: float, wanted: Wanted) -> list[Frame]:
    """The panels of a picture of this width below each other, with so much above and below."""
    bands, panels = view.bands(timeline), view.panels(timeline)
    left, right = _left(timeline, bands, look), width - MARGIN
    items = list(_items(timeline, bands, look))
    natural, slimmest = sum(item.height for item in items), min(item.height for item in items)
    around = wanted.head + sum(map(_around, panels)) + wanted.foot
    natural *= len(panels)
    scale = (look.size.height - around) / natural if look.size.height else 1.0
    if right - left < LEAST_WIDTH or scale * slimmest < LEAST_ROW:
        raise InputError(
            f"{len(bands)} rows with title and legend need {left + LEAST_WIDTH + MARGIN:.0f} x"
            f" {around + natural * LEAST_ROW / slimmest:.0f} pixels or more"
        )
    height = look.size.height or round(around + natural)
    longest = max(panel.window.length for panel in panels)
    found = []
    top = wanted.head
    for panel in panels:
        share = panel.window.length / longest if longest > 0 else 1.0
        paper = Paper(width, height, left, left + (right - left) * share)
        found.append(_frame(panel, items, scale, top, paper))
        top = found[-1].bottom + AXIS
    return found


class Paper(NamedTuple):
    """How large the paper is, and from where to where a panel's rows go."""

    width: float
    height: float
    left: float
    right: float


def _around(panel: Panel) -> float:
    """What a panel has above and below its rows."""
    return AXIS + (NAME if panel.name else 0.0)


def _frame(panel: Panel, items: list[_Item], scale: float, top: float, paper: Paper) -> Frame:
    rows, strips = [], []
    first = top = top + _around(panel) - AXIS
    for what, height in items:
        if isinstance(what, Band):
            rows.append(Row(what, top, height * scale * (1 - GAP)))
        elif what is not None:
            strips.append(Strip(what, top, height * scale * (1 - GAP)))
        top += height * scale
    return Frame(
        width=paper.width,
        height=paper.height,
        left=paper.left,
        right=paper.right,
        panel=panel,
        rows=tuple(rows),
        strips=tuple(strips),
        top=first,
        bottom=top,
    )


def _left(timeline: Timeline, bands: list[Band], look: Look) -> float:
    """Room for the labels of the rows."""
    labels = [width_of(band.label.strip(), SIZE) for band in bands]
    if look.has_memory:
        unit = memory_unit(timeline)
        labels += [width_of(unit.amount(peak), SMALL) for peak in timeline.memory.peaks]
    return MARGIN + ASIDE + max(labels) + 6


class _Item(NamedTuple):
    """A band, the memory of a device, or a space, and its height."""

    what: Band | int | None
    height: float


def _items(timeline: Timeline, bands: list[Band], look: Look) -> Iterator[_Item]:
    """What stands below each other, with the heights that look best."""
    has_streams = len({band.device for band in bands}) < len(bands)
    has_pairs = bool(timeline.program.actions.joined.any())
    natural = STREAM_ROW if has_streams else PAIRED_ROW if has_pairs else ROW
    row = max(LEAST_ROW * 2, min(natural, TALLEST / len(bands)))
    for device, own in groupby(bands, key=lambda band: band.device):
        yield from (_Item(band, row) for band in own)
        if look.has_memory:
            yield _Item(device, STRIP)
        if has_streams or look.has_memory:
            yield _Item(None, row / 3)

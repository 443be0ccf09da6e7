"""Compared slots as SVG: phases side by side, predicted above measured.

┌ title ────────────────────────────────────────────┐
│               warm-up          steady             │
│               predicted: 4 ms  predicted: 9 ms    │
│ Computation   ██ ██            ██ ██ ██ ██ ██     │  three rows for each timeline
│               measured: 5 ms   measured: 10 ms    │
│ Computation   ██  ██           ██ ██  ██ ██ ██    │
│               0    2    4      0    5    10       │  one time scale
└ legend ───────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import NamedTuple

from weft.draw.caption import number, title
from weft.draw.compared import Compared
from weft.draw.look import PLAIN, Look
from weft.draw.slots import Slot
from weft.draw.svg import words
from weft.draw.svg.boxes import boxes, drawn, hatchings, moments
from weft.draw.svg.elements import element, group, rectangle, text, width_of
from weft.draw.svg.foot import drawn_foot, foot, foot_height
from weft.draw.svg.frame import (
    ASIDE,
    AXIS,
    GAP,
    MARGIN,
    NAME,
    SIZE,
    TITLE,
    WIDEST,
    Frame,
    Row,
)
from weft.draw.svg.labels import full_labels
from weft.draw.svg.picture import document, marks
from weft.draw.svg.words import TICKS
from weft.draw.units import round_times
from weft.draw.view import WHOLE, View
from weft.errors import InputError

ROW = 26.0  # with the space below it
BETWEEN = 28.0  # columns
APART = 8.0  # timelines
LEAST = 130.0  # width of a column, for the words above it


class _Column(NamedTuple):
    """A slot, where it begins on the paper, and what stands above and below each other there."""

    slot: Slot
    panels: dict[str, Frame]  # by timeline

    @property
    def top(self) -> Frame:
        return next(iter(self.panels.values()))

    @property
    def widest(self) -> Frame:
        return max(self.panels.values(), key=lambda frame: frame.right)

    @property
    def bottom(self) -> float:
        return max(frame.bottom for frame in self.panels.values())


def compared_to_svg(compared: Compared, *, view: View = WHOLE, look: Look = PLAIN) -> str:
    """The slots of a device, predicted and measured, as an SVG document."""
    view = compared.view(view)
    width = look.size.width or round(_left(compared) + WIDEST + MARGIN)
    entries = compared.legend
    signs = foot(entries, compared.measured, view.palette, look, width)
    columns = _columns(compared, look, width, foot_height(signs))
    paper, theme = columns[0].top, look.theme
    frames = [(name, frame) for column in columns for name, frame in column.panels.items()]
    content = [
        element("title", escape(title(compared.program))),
        element("desc", escape(compared.words)),
        element("defs", *hatchings(marks(entries), view.palette)),
        rectangle(0, 0, paper.width, paper.height, fill=theme.paper.code),
        group(words.drawn_head(_head(compared)), fill=theme.text.code, color=theme.text.code),
        group(_names(columns), fill=theme.text.code),
        group(_idle(columns), fill=theme.idle.code),
        group(_axes(compared, columns), fill=theme.faint.code, color=theme.faint.code),
        *(part for name, frame in frames for part in _rows(compared, view, name, frame)),
        group(drawn_foot(signs, paper), fill=theme.text.code),
    ]
    return document(content, paper, look)


def _head(compared: Compared) -> list[tuple[float, str]]:
    return [(TITLE, title(compared.program)), (SIZE, compared.words)]


# where everything stands


def _left(compared: Compared) -> float:
    """Room for the labels of the rows."""
    return MARGIN + ASIDE + max(width_of(band.label, SIZE) for band in compared.bands) + 6


def _columns(compared: Compared, look: Look, width: float, foot: float) -> list[_Column]:
    """Slots side by side, all of one time scale."""
    left, lengths = _left(compared), [compared.length(slot) for slot in compared.slots]
    room = width - MARGIN - left - BETWEEN * (len(lengths) - 1)
    scale = _scale(lengths, room)
    block = NAME + ROW * len(compared.bands) + APART
    top = words.head_height(_head(compared)) + NAME
    height = round(top + block * len(compared.timelines) + AXIS + foot)
    if scale <= 0 or height > (look.size.height or height):
        least = _left(compared) + (LEAST + BETWEEN) * len(lengths)
        raise InputError(f"slots with title and legend need {least:.0f} x {height} pixels or more")
    size, columns = (width, look.size.height or height), list[_Column]()
    for slot, length in zip(compared.slots, lengths, strict=True):
        tops = {name: top + at * block + NAME for at, name in enumerate(compared.timelines)}
        panels = {
            name: _frame(compared, slot, name, (left, first), (scale, *size))
            for name, first in tops.items()
        }
        columns.append(_Column(slot, panels))
        left += max(LEAST, length * scale) + BETWEEN
    return columns


def _scale(lengths: list[float], room: float) -> float:
    """Pixels of a second: what fills the room, where some columns are as narrow as they may be."""
    narrow: set[int] = set()
    while True:
        wide = [length for index, length in enumerate(lengths) if index not in narrow]
        scale = (room - LEAST * len(narrow)) / sum(wide) if wide else 0.0
        more = {at for at, length in enumerate(lengths) if length * scale < LEAST} - narrow
        if not more or scale <= 0:
            return scale
        narrow |= more


def _frame(
    compared: Compared,
    slot: Slot,
    name: str,
    corner: tuple[float, float],
    sizes: tuple[float, float, float],
) -> Frame:
    (left, top), (scale, width, height), panel = corner, sizes, compared.panel(slot, name)
    rows = tuple(
        Row(band, top + ROW * at, ROW * (1 - GAP)) for at, band in enumerate(compared.bands)
    )
    return Frame(
        width=width,
        height=height,
        left=left,
        right=left + panel.window.length * scale,
        panel=panel,
        rows=rows,
        strips=(),
        top=top,
        bottom=top + ROW * len(rows),
    )


# what stands there


def _names(columns: list[_Column]) -> Iterator[str]:
    """The phase above its slot, and how long that takes in each timeline."""
    for column in columns:
        first = column.top
        yield text(column.slot.phase, first.left, first.top - 6 - NAME, font_weight="600")
        for frame in column.panels.values():
            yield from words.panel_name(frame)


def _idle(columns: list[_Column]) -> Iterator[str]:
    for column in columns:
        for frame in column.panels.values():
            for row in frame.rows:
                yield rectangle(frame.left, row.top, frame.room, row.height)


def _axes(compared: Compared, columns: list[_Column]) -> Iterator[str]:
    """Labels of the rows, and times since the slot began."""
    for name, frame in columns[0].panels.items():
        yield from words.row_labels(frame, name)
    for column in columns:
        yield from _axis(compared, column)


def _axis(compared: Compared, column: _Column) -> Iterator[str]:
    unit, frame, bottom = compared.unit, column.widest, column.bottom + 13
    length = frame.window.length / unit.size
    ends = [one.right for one in column.panels.values()]
    for time in round_times(0.0, length, least=TICKS * length / frame.room):
        x = frame.left + time * unit.size * frame.per_second
        for one, end in zip(column.panels.values(), ends, strict=True):
            if x <= end + 0.5:
                line = f"M{x:.1f} {one.top:.1f}V{one.bottom:.1f}"
                yield element(
                    "path", d=line, stroke="currentColor", stroke_opacity=0.25, fill="none"
                )
        yield text(number(time), x, bottom, text_anchor="middle")
    named = f"time ({unit.name})" if unit.name else "time"
    yield text(named, frame.left, bottom + 14)


def _rows(compared: Compared, view: View, name: str, frame: Frame) -> Iterator[str]:
    """Boxes of each row, and the labels above them."""
    timeline = compared.timelines[name]
    written = full_labels(timeline, view, frame)
    for row in frame.rows:
        here = boxes(timeline, view, frame, row)
        yield group(drawn([*here, *moments(timeline, view, frame, row)], view.palette))
        inside = written.drawn(here, view.palette)
        yield group(inside, text_anchor="middle", font_size=written.size)

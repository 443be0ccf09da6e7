"""Words: title and figures above the rows, axes beside and below them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap
from typing import TypeVar

from weft.draw.caption import figures, number, title
from weft.draw.svg.elements import ADVANCE, element, text, width_of
from weft.draw.svg.frame import MARGIN, SIZE, TITLE, Frame
from weft.draw.units import round_times, time_unit
from weft.timeline import Timeline

Item = TypeVar("Item")

SPACE = 14.0  # between phrases of a line
TICKS = 56.0  # between times, at least


# the head


def head(timeline: Timeline, width: float) -> list[tuple[float, str]]:
    """The lines above the rows, each with its font size."""
    room = width - 2 * MARGIN
    titles = wrap(title(timeline.program), int(room / TITLE / ADVANCE))
    phrases = flowed([(width_of(words, SIZE), words) for words in figures(timeline)], room)
    lines = [" · ".join(words for _, words in line) for line in phrases]
    return [*((TITLE, line) for line in titles), *((SIZE, line) for line in lines)]


def head_height(lines: list[tuple[float, str]]) -> float:
    return MARGIN + sum(size + 5 for size, _ in lines) + 4


def drawn_head(lines: list[tuple[float, str]]) -> Iterator[str]:
    y = MARGIN
    for size, words in lines:
        y += size
        weight = "600" if size == TITLE else None
        yield text(words, MARGIN, y, font_size=size, font_weight=weight)
        y += 5


# the axes


def axes(timeline: Timeline, frame: Frame) -> Iterator[str]:
    """Ticks at round times, what they count, and the labels of the rows."""
    unit = time_unit(timeline)
    start, end = (time / unit.size for time in frame.window)
    bottom = frame.bottom + 13
    if end > start:
        for time in round_times(start, end, least=TICKS * (end - start) / frame.room):
            x = frame.x(time * unit.size)
            line = f"M{x:.1f} {frame.top:.1f}V{frame.bottom + 2:.1f}"
            yield element("path", d=line, stroke="currentColor", stroke_opacity=0.25, fill="none")
            yield text(number(time), x, bottom, text_anchor="middle")
    middle = (frame.left + frame.right) / 2
    words = f"time ({unit.name})" if unit.name else "time"
    yield text(words, middle, bottom + 14, text_anchor="middle")
    yield from row_labels(frame, "device")


def row_labels(frame: Frame, aside: str) -> Iterator[str]:
    """The labels of the rows, and beside them what they are labels of."""
    for row in frame.rows:
        size = min(SIZE, row.height)
        y = row.top + row.height / 2 + 0.35 * size
        yield text(row.band.label.strip(), frame.left - 6, y, text_anchor="end", font_size=size)
    height = (frame.top + frame.bottom) / 2
    turned = f"translate({MARGIN + 9:g} {height:g}) rotate(-90)"
    yield text(aside, 0, 0, text_anchor="middle", transform=turned)


def panel_name(frame: Frame) -> Iterator[str]:
    """What the panel is called, where there are several."""
    if frame.panel.name:
        yield text(frame.panel.name, frame.left, frame.top - 6)


def flowed(phrases: Iterable[tuple[float, Item]], room: float) -> list[list[tuple[float, Item]]]:
    """Phrases side by side, on as many lines as it takes."""
    lines: list[list[tuple[float, Item]]] = []
    used = room
    for width, phrase in phrases:
        if used + SPACE + width > room:
            lines.append([])
            used = -SPACE
        lines[-1].append((width, phrase))
        used += SPACE + width
    return lines

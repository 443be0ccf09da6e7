"""The whole picture, from paper to legend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from weft.draw.caption import figures, title
from weft.draw.legend import Entry
from weft.draw.look import PLAIN, Look
from weft.draw.marks import Mark
from weft.draw.svg import words
from weft.draw.svg.boxes import boxes, drawn, hatchings, moments
from weft.draw.svg.elements import FONT, element, group, rectangle
from weft.draw.svg.foot import drawn_foot, foot, foot_height
from weft.draw.svg.frame import SIZE, Frame, Wanted, frames, paper_width
from weft.draw.svg.labels import ideal_width, labels
from weft.draw.svg.levels import levels
from weft.draw.view import WHOLE, View
from weft.timeline import Timeline


def to_svg(timeline: Timeline, *, view: View = WHOLE, look: Look = PLAIN) -> str:
    """The timeline as an SVG document."""
    width = paper_width(timeline, view, look, ideal_width(timeline, view))
    entries, head = view.legend(timeline), words.head(timeline, width)
    signs = foot(entries, timeline, view.palette, look, width)
    wanted = Wanted(words.head_height(head), foot_height(signs))
    panels = frames(timeline, view, look, width, wanted)
    paper = panels[0]
    theme = look.theme
    content = [
        element("title", escape(title(timeline.program))),
        element("desc", escape("; ".join(figures(timeline)))),
        element("defs", *hatchings(marks(entries), view.palette)),
        rectangle(0, 0, paper.width, paper.height, fill=theme.paper.code),
        group(words.drawn_head(head), fill=theme.text.code, color=theme.text.code),
        *(part for panel in panels for part in _panel(timeline, view, look, panel)),
        group(drawn_foot(signs, paper), fill=theme.text.code),
    ]
    return document(content, paper, look)


def _panel(timeline: Timeline, view: View, look: Look, panel: Frame) -> Iterator[str]:
    """Name, axes, rows and strips."""
    theme = look.theme
    yield group(words.panel_name(panel), fill=theme.text.code)
    yield group(_idle(panel), fill=theme.idle.code)
    yield group(words.axes(timeline, panel), fill=theme.faint.code, color=theme.faint.code)
    yield from _rows(timeline, view, panel)
    yield group(levels(timeline, panel, look), fill=theme.faint.code, color=theme.faint.code)


def document(content: list[str], paper: Frame, look: Look) -> str:
    """An SVG document of these elements."""
    return (
        element(
            "svg",
            "\n",
            *(f"{part}\n" for part in content if part),
            xmlns="http://www.w3.org/2000/svg",
            width=look.size.written(paper.width),
            height=look.size.written(paper.height),
            viewBox=f"0 0 {paper.width:g} {paper.height:g}",
            role="img",
            font_family=FONT,
            font_size=SIZE,
        )
        + "\n"
    )


def marks(entries: Iterable[Entry]) -> Iterator[Mark]:
    """All that a legend shows."""
    for entry in entries:
        yield from entry.marks


def _idle(paper: Frame) -> Iterator[str]:
    for row in paper.rows:
        yield rectangle(paper.left, row.top, paper.room, row.height)


def _rows(timeline: Timeline, view: View, paper: Frame) -> Iterator[str]:
    """Boxes of each row, what takes no time, and the labels above all of that."""
    written = labels(timeline, view, paper)
    for row in paper.rows:
        here = boxes(timeline, view, paper, row)
        instants = list(moments(timeline, view, paper, row))
        yield group(drawn([*here, *instants], view.palette))
        inside = written.drawn(here, view.palette)
        yield group(inside, text_anchor="middle", font_size=written.size)

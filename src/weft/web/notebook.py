"""Notebooks: the page at the end of a cell, to zoom and to point at.

weft.explore(timeline)
weft.explore(predicted, measured, height=800)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

from weft.errors import InputError
from weft.timeline import Timeline
from weft.web.page import page

HEIGHT = 720  # pixels


@dataclass(frozen=True, slots=True)
class Frame:
    """A page as a notebook shows it: in a frame of its own, with nothing to load."""

    html: str = field(repr=False)
    height: int = HEIGHT

    def _repr_html_(self) -> str:
        look = f"width: 100%; height: {self.height}px; border: 1px solid #8886"
        return f'<iframe title="Weft" srcdoc="{escape(self.html)}" style="{look}"></iframe>'


def explore(*timelines: Timeline, height: int = HEIGHT) -> Frame:
    """The interactive page of some timelines, for the end of a cell."""
    if not timelines:
        raise InputError("there is no timeline to explore")
    return Frame(page(timelines), height)

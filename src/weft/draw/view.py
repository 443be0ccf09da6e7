"""View: what of a timeline a picture shows, whatever it is drawn with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from weft.draw.bands import Band, BandsOf, devices
from weft.draw.marks import MarksOf, marker
from weft.draw.palette import SAFE, Palette
from weft.errors import InputError
from weft.timeline import Timeline


class Window(NamedTuple):
    """From when to when, in seconds since the first start."""

    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Which rows, of which devices, from when to when, in which colours.

    only        the devices to show; None for all
    window      None for the whole timeline
    count_from  the number of the first microbatch: 0, or 1 as in many papers
    """

    bands_of: BandsOf = devices
    only: tuple[int, ...] | None = None
    window: Window | None = None
    count_from: int = 0
    palette: Palette = SAFE

    def bands(self, timeline: Timeline) -> list[Band]:
        """The rows, from top to bottom."""
        bands = self.bands_of(timeline.program)
        if self.only is None:
            return bands
        last = timeline.program.devices - 1
        if unknown := [device for device in self.only if not 0 <= device <= last]:
            raise InputError(f"there is no device {unknown[0]}; they are numbered 0 to {last}")
        return [band for band in bands if band.device in self.only]

    def shown(self, timeline: Timeline) -> Window:
        """The window, cut to where something happens."""
        whole = Window(0.0, timeline.makespan)
        if self.window is None:
            return whole
        start, end = max(self.window.start, 0.0), min(self.window.end, whole.end)
        if start >= end:
            raise InputError(
                f"nothing happens from {self.window.start:g} to {self.window.end:g};"
                f" the timeline ends at {whole.end:g}"
            )
        return Window(start, end)

    def marker(self, timeline: Timeline) -> MarksOf:
        """A function from a slot to its marks, microbatches numbered as asked for."""
        return marker(timeline.program, count_from=self.count_from)


WHOLE = View()

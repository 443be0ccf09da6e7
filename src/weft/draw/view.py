"""View: what of a timeline a picture shows, whatever it is drawn with."""

from __future__ import annotations

from dataclasses import dataclass

from weft.draw.bands import Band, BandsOf, devices
from weft.draw.legend import Entry, legend, within
from weft.draw.marks import MarksOf, marker
from weft.draw.palette import SAFE, Palette
from weft.draw.phases import phases
from weft.draw.window import Panel, Window
from weft.errors import InputError
from weft.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Which rows, of which devices, from when to when, in which colours.

    only        the devices to show; None for all
    window      None for the whole timeline
    phases      a device of which warm-up, steady state and cool-down are shown, and nothing else
    count_from  the number of the first microbatch: 0, or 1 as in many papers
    """

    bands_of: BandsOf = devices
    only: tuple[int, ...] | None = None
    window: Window | None = None
    phases: int | None = None
    count_from: int = 0
    palette: Palette = SAFE

    def bands(self, timeline: Timeline) -> list[Band]:
        """The rows, from top to bottom."""
        bands = self.bands_of(timeline.program)
        only = self.only if self.phases is None else (self.phases,)
        if only is None:
            return bands
        last = timeline.program.devices - 1
        if unknown := [device for device in only if not 0 <= device <= last]:
            raise InputError(f"there is no device {unknown[0]}; they are numbered 0 to {last}")
        return [band for band in bands if band.device in only]

    def panels(self, timeline: Timeline) -> list[Panel]:
        """What stands below each other: the window, or one for each phase."""
        if self.phases is None:
            return [Panel("", self._shown(timeline))]
        found = phases(timeline, self.phases)
        return [Panel(f"{name} of device {self.phases}", found[name]) for name in found]

    def legend(self, timeline: Timeline) -> list[Entry]:
        """What the marks mean that are in view."""
        windows = [panel.window for panel in self.panels(timeline)]
        return [*legend(timeline, self.bands(timeline), within(timeline, windows))]

    def _shown(self, timeline: Timeline) -> Window:
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

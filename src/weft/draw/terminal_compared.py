"""Compared slots in the terminal, in letters or in colours: phase by phase, on one time scale."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from weft.draw.bands import Band
from weft.draw.caption import title
from weft.draw.compared import Compared
from weft.draw.grid import Grid
from weft.draw.marks import Mark
from weft.draw.pens import DIM, Colours, Letters, Pen
from weft.draw.slots import Slot
from weft.draw.terminal import LEAST_ROOM, axis, flowed, gutter, legend_signs, rows
from weft.draw.view import WHOLE, View


def compared_plain(compared: Compared, *, width: int, view: View = WHOLE) -> str:
    """The slots in letters, within `width` columns."""
    pen = Letters(view.marker(compared.measured), lambda mark: mark.label)
    return _picture(compared, pen, width).plain


def compared_coloured(compared: Compared, *, width: int, view: View = WHOLE) -> Text:
    """The slots in colours, within `width` columns."""
    pen = Colours(view.marker(compared.measured), _forms, view.palette)
    return _picture(compared, pen, width)


def _forms(mark: Mark) -> tuple[str, ...]:
    return mark.label, mark.letter


def _picture(compared: Compared, pen: Pen, width: int) -> Text:
    bands = _labelled(compared)
    room = max(LEAST_ROOM, width - gutter(bands["predicted"]) - 1)
    scale = room / max(map(compared.length, compared.slots))
    lines = [
        Text(title(compared.program), "bold"),
        Text(compared.words),
        *(line for slot in compared.slots for line in _slot(compared, slot, bands, pen, scale)),
        *flowed(legend_signs(compared.legend, pen), width),
    ]
    return Text("\n").join(lines)


def _labelled(compared: Compared) -> dict[str, list[Band]]:
    """The rows of each timeline; its name stands beside the first of them."""
    names, labels = ([*map(len, some)] for some in (compared.timelines, _labels(compared)))
    return {
        name: [
            band._replace(label=f"{'' if at else name:{max(names)}} {band.label:{max(labels)}}")
            for at, band in enumerate(compared.bands)
        ]
        for name in compared.timelines
    }


def _labels(compared: Compared) -> list[str]:
    return [band.label for band in compared.bands]


def _slot(
    compared: Compared, slot: Slot, bands: dict[str, list[Band]], pen: Pen, scale: float
) -> Iterator[Text]:
    """The phase, what each timeline has of it, and the time since it began."""
    panels = {name: compared.panel(slot, name) for name in compared.timelines}
    yield Text(f"{slot.phase}, {', '.join(panel.name for panel in panels.values())}", "bold")
    widest = Grid(1, scale)
    for name, timeline in compared.timelines.items():
        window = panels[name].window
        opening = float(timeline.start.min()) + window.start
        grid = Grid(max(1, round(scale * window.length)), scale, opening)
        widest = max(widest, grid, key=lambda one: one.columns)
        yield from rows(timeline, bands[name], grid, pen)
    first = gutter(bands["predicted"])
    yield Text(" " * first + axis(widest, pen, compared.unit, 0.0), DIM)

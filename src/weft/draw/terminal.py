"""The terminal: one row for each device, time to the right.

`plain` draws in letters, for pipes, files and diffs; `coloured` in colours and, where labels
have no room, with two columns to a character. Knows the width it is given, not the screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap
from typing import NamedTuple

from rich.style import Style
from rich.text import Text

from weft.draw.bands import Band, is_moment
from weft.draw.caption import figures, number, title
from weft.draw.grid import Grid, fit, usual_shortest
from weft.draw.legend import Entry, Sign
from weft.draw.marks import Mark, marker
from weft.draw.pens import DIM, Colours, HalfColumns, Letters, Pen
from weft.draw.units import Unit, round_times, time_unit
from weft.draw.view import WHOLE, View
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.timeline import Timeline

MOST_ROWS = 64  # of more devices, the first and the last are drawn
LEAST_ROOM = 8
SAMPLES = 4  # of a half column that holds several actions
MOMENT = Style(bold=True, reverse=True)


def plain(timeline: Timeline, *, width: int, view: View = WHOLE) -> str:
    """The timeline in letters, within `width` columns."""
    bands = view.bands(timeline)
    room, longest = _room(bands, width) - 1, _longest_label(timeline.program)
    sheets = _sheets(timeline, view, room=room, widest=longest + 1)
    has_primes = sheets[0].grid.per_second * usual_shortest(timeline) >= longest
    pen = Letters(
        view.marker(timeline), lambda mark: mark.label if has_primes else mark.short_label
    )
    return _picture(timeline, view, sheets, pen, width).plain


def coloured(timeline: Timeline, *, width: int, view: View = WHOLE) -> Text:
    """The timeline in colours, within `width` columns."""
    bands = view.bands(timeline)
    room, longest = _room(bands, width), _longest_label(timeline.program)
    sheets = _sheets(timeline, view, room=room, widest=longest + 2)
    shortest = sheets[0].grid.per_second * usual_shortest(timeline)
    if shortest < 1:
        return _in_half_columns(timeline, view, width, samples=1 if shortest >= 0.5 else SAMPLES)
    has_letters = shortest >= longest

    def forms(mark: Mark) -> tuple[str, ...]:
        numbers = (mark.number + mark.subscript, mark.number)
        return (mark.label, *numbers) if has_letters else numbers

    pen = Colours(view.marker(timeline), forms, view.palette)
    return _picture(timeline, view, sheets, pen, width)


def _in_half_columns(timeline: Timeline, view: View, width: int, *, samples: int) -> Text:
    pen = HalfColumns(view.marker(timeline), view.palette, samples=samples)
    room = pen.per_character * _room(view.bands(timeline), width)
    sheets = _sheets(timeline, view, room=room, widest=room)
    return _picture(timeline, view, sheets, pen, width)


class _Sheet(NamedTuple):
    """A panel in columns; its name only where there are several."""

    name: str
    grid: Grid


def _sheets(timeline: Timeline, view: View, *, room: int, widest: int) -> list[_Sheet]:
    panels = view.panels(timeline)
    grids = fit(timeline, panels, room=room, widest=widest)
    return [_Sheet(panel.name, grid) for panel, grid in zip(panels, grids, strict=True)]


def _room(bands: list[Band], width: int) -> int:
    return max(LEAST_ROOM, width - gutter(bands))


def gutter(bands: list[Band]) -> int:
    """Columns that a band's label takes, with the space after it."""
    return max(len(band.label) for band in bands) + 1


def _longest_label(program: Program) -> int:
    """Letter, digits and primes of the longest label; a span may be longer."""
    places = max(len(held) for held in program.placement.held)
    last = int(program.actions.microbatch.max(initial=0))
    newest = int(program.actions.version[program.actions.kind <= Kind.R].max(initial=0))
    return 1 + len(str(last)) + places - 1 + (len(str(newest)) if newest > 0 else 0)


def _picture(timeline: Timeline, view: View, sheets: list[_Sheet], pen: Pen, width: int) -> Text:
    bands = view.bands(timeline)
    lines = [
        *(Text(line, "bold") for line in wrap(title(timeline.program), width)),
        *(line for sheet in sheets for line in _sheet(timeline, bands, sheet, pen)),
        *flowed(map(Text, figures(timeline)), width),
        *flowed(legend_signs(view.legend(timeline), pen), width),
    ]
    return Text("\n").join(lines)


def _sheet(timeline: Timeline, bands: list[Band], sheet: _Sheet, pen: Pen) -> Iterator[Text]:
    """Name, rows and axis."""
    if sheet.name:
        yield Text(sheet.name)
    yield from rows(timeline, bands, sheet.grid, pen)
    start = sheet.grid.opening - float(timeline.start.min(initial=0.0))
    yield Text(" " * gutter(bands) + axis(sheet.grid, pen, time_unit(timeline), start), DIM)


def rows(timeline: Timeline, bands: list[Band], grid: Grid, pen: Pen) -> Iterator[Text]:
    """The rows of bands, each after its label."""
    room = gutter(bands)
    hidden = _hidden(bands)
    for band, columns in zip(bands, grid.rows(timeline, bands), strict=True):
        if band.device not in hidden:
            row = _with_moments(pen.row(columns), timeline, band, grid, pen)
            yield Text.assemble((f"{band.label:>{room - 1}} ", DIM), row)
        elif band.device == hidden[0]:
            yield Text(f"{'':{room}}{len(hidden)} more devices", DIM)


def _with_moments(row: Text, timeline: Timeline, band: Band, grid: Grid, pen: Pen) -> Text:
    """A letter for what takes no time, where there is room: at the end of what stands before."""
    marks_of = marker(timeline.program)
    per_second = grid.per_second / pen.per_character
    for slots in band.lanes:
        first = timeline.program.first_of_slot[slots]
        here = is_moment(timeline)[first]
        columns = (timeline.end[first][here] - grid.opening) * per_second
        for slot, column in zip(slots[here].tolist(), columns.tolist(), strict=True):
            row = _with_letter(row, marks_of(slot)[0].letter, round(column), pen.idle)
    return row


def _with_letter(row: Text, letter: str, column: int, idle: str) -> Text:
    for place in (column - 1, column):
        if 0 <= place < len(row) and row.plain[place] in (" ", idle):
            return Text.assemble(row[:place], (letter, MOMENT), row[place + 1 :])
    return row


def _hidden(bands: list[Band]) -> list[int]:
    """The devices in the middle that are too many."""
    devices = list(dict.fromkeys(band.device for band in bands))
    return devices[MOST_ROWS // 2 : -MOST_ROWS // 2] if len(devices) > MOST_ROWS else []


def axis(grid: Grid, pen: Pen, unit: Unit, start: float) -> str:
    """Ticks at round times, as close as their numbers allow; the first column is at `start`."""
    per_unit = grid.per_second * unit.size / pen.per_character
    columns = -(-grid.columns // pen.per_character)
    start /= unit.size
    name = f" {unit.name}" if unit.name else ""
    widest = max(9, len(number(start + columns / per_unit) + name) + 3)
    axis = ""
    for time in round_times(start, start + columns / per_unit, least=widest / per_unit):
        column = round((time - start) * per_unit)
        label = f"{pen.tick}{number(time)}{name if time else ''}"
        if column + len(label) <= columns:
            axis = axis.ljust(column) + label
    return axis


def legend_signs(entries: Iterable[Entry], pen: Pen) -> Iterator[Text]:
    """What marks mean, a phrase each."""
    for entry in entries:
        yield Text.assemble(*_signs(entry, pen), f" {entry.meaning}")
    yield Text(f"{pen.idle} idle", DIM)


def _signs(entry: Entry, pen: Pen) -> Iterator[Text]:
    """What stands before a meaning."""
    match entry.sign:
        case Sign.MARKS:
            yield from map(pen.swatch, entry.marks)
        case Sign.PAIR:
            yield pen.pair(*entry.marks)
        case Sign.MOMENT:
            yield Text(entry.marks[0].letter, MOMENT)
        case Sign.VERSION:
            yield Text("₀₁₂")


def flowed(phrases: Iterable[Text], width: int) -> Iterator[Text]:
    """Phrases side by side, on as many lines as it takes."""
    line = Text("")
    for phrase in phrases:
        if line and len(line) + 3 + len(phrase) > width:
            yield line
            line = Text("")
        line = Text.assemble(line, "   " if line else "", phrase)
    yield line

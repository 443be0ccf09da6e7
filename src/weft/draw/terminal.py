"""The terminal: one row for each device, time to the right.

`plain` draws in letters, for pipes, files and diffs; `coloured` in colours and, where labels
have no room, with two columns to a character. Knows the width it is given, not the screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap

import numpy as np
from numpy.typing import NDArray
from rich.style import Style
from rich.text import Text

from weft.draw.bands import Band, BandsOf, devices, shown_ends
from weft.draw.caption import WORDS, figures, legend, number, title
from weft.draw.grid import Grid, fit, usual_shortest
from weft.draw.marks import Mark, marker
from weft.draw.pens import DIM, Colours, HalfColumns, Letters, Pen
from weft.draw.units import Unit, time_unit
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.timeline import Timeline

MOST_ROWS = 64  # of more devices, the first and the last are drawn
LEAST_ROOM = 8
SAMPLES = 4  # of a half column that holds several actions
MOMENT = Style(bold=True, reverse=True)
MOMENTS = (Kind.UPDATE, Kind.SEND_ACTIVATION, Kind.SEND_GRADIENT)


def plain(timeline: Timeline, *, width: int, bands_of: BandsOf = devices) -> str:
    """The timeline in letters, within `width` columns."""
    bands = bands_of(timeline.program)
    room, longest = _room(bands, width) - 1, _longest_label(timeline.program)
    grid = fit(timeline, room=room, widest=longest + 1)
    has_primes = grid.per_second * usual_shortest(timeline) >= longest
    pen = Letters(
        marker(timeline.program), lambda mark: mark.label if has_primes else mark.short_label
    )
    return _picture(timeline, bands, grid, pen, width).plain


def coloured(timeline: Timeline, *, width: int, bands_of: BandsOf = devices) -> Text:
    """The timeline in colours, within `width` columns."""
    bands = bands_of(timeline.program)
    room, longest = _room(bands, width), _longest_label(timeline.program)
    grid = fit(timeline, room=room, widest=longest + 2)
    shortest = grid.per_second * usual_shortest(timeline)
    if shortest < 1:
        return _in_half_columns(timeline, bands, width, samples=1 if shortest >= 0.5 else SAMPLES)
    has_letters = shortest >= longest

    def forms(mark: Mark) -> tuple[str, ...]:
        numbers = (mark.number + mark.subscript, mark.number)
        return (mark.label, *numbers) if has_letters else numbers

    pen = Colours(marker(timeline.program), forms)
    return _picture(timeline, bands, grid, pen, width)


def _in_half_columns(timeline: Timeline, bands: list[Band], width: int, *, samples: int) -> Text:
    pen = HalfColumns(marker(timeline.program), samples=samples)
    room = pen.per_character * _room(bands, width)
    return _picture(timeline, bands, fit(timeline, room=room, widest=room), pen, width)


def _room(bands: list[Band], width: int) -> int:
    return max(LEAST_ROOM, width - _gutter(bands))


def _gutter(bands: list[Band]) -> int:
    """Columns that a band's label takes, with the space after it."""
    return max(len(band.label) for band in bands) + 1


def _longest_label(program: Program) -> int:
    """Letter, digits and primes of the longest label; a span may be longer."""
    places = max(len(held) for held in program.placement.held)
    last = int(program.actions.microbatch.max(initial=0))
    newest = int(program.actions.version.max(initial=0))
    return 1 + len(str(last)) + places - 1 + (len(str(newest)) if newest > 0 else 0)


def _picture(timeline: Timeline, bands: list[Band], grid: Grid, pen: Pen, width: int) -> Text:
    program = timeline.program
    gutter = " " * _gutter(bands)
    lines = [
        *(Text(line, "bold") for line in wrap(title(program), width)),
        *_rows(timeline, bands, grid, pen),
        Text(gutter + _axis(grid, pen, time_unit(timeline)), DIM),
        *_flowed(map(Text, figures(timeline)), width),
        *_flowed(_legend(timeline, bands, pen), width),
    ]
    return Text("\n").join(lines)


def _rows(timeline: Timeline, bands: list[Band], grid: Grid, pen: Pen) -> Iterator[Text]:
    gutter = _gutter(bands)
    hidden = _hidden(timeline.program.devices)
    for band, columns in zip(bands, grid.rows(timeline, bands), strict=True):
        if band.device not in hidden:
            row = _with_moments(pen.row(columns), timeline, band, grid, pen)
            yield Text.assemble((f"{band.label:>{gutter - 1}} ", DIM), row)
        elif band.device == hidden.start:
            yield Text(f"{'':{gutter}}{len(hidden)} more devices", DIM)


def _with_moments(row: Text, timeline: Timeline, band: Band, grid: Grid, pen: Pen) -> Text:
    """A letter for what takes no time, where there is room: at the end of what stands before."""
    marks_of = marker(timeline.program)
    per_second = grid.per_second / pen.per_character
    for slots in band.lanes:
        first = timeline.program.first_of_slot[slots]
        here = _is_moment(timeline)[first]
        columns = (timeline.end[first][here] - grid.opening) * per_second
        for slot, column in zip(slots[here].tolist(), columns.tolist(), strict=True):
            row = _with_letter(row, marks_of(slot)[0].letter, round(column), pen.idle)
    return row


def _is_moment(timeline: Timeline) -> NDArray[np.bool_]:
    """For each action, whether it is an update or a send that takes no time."""
    is_short = timeline.start == shown_ends(timeline)
    return np.asarray(is_short & np.isin(timeline.program.actions.kind, MOMENTS))


def _with_letter(row: Text, letter: str, column: int, idle: str) -> Text:
    for place in (column - 1, column):
        if 0 <= place < len(row) and row.plain[place] in (" ", idle):
            return Text.assemble(row[:place], (letter, MOMENT), row[place + 1 :])
    return row


def _hidden(devices: int) -> range:
    """The devices in the middle that are too many."""
    if devices <= MOST_ROWS:
        return range(0)
    return range(MOST_ROWS // 2, devices - MOST_ROWS // 2)


def _axis(grid: Grid, pen: Pen, unit: Unit) -> str:
    """Ticks at round times, as close as their numbers allow."""
    per_unit = grid.per_second * unit.size / pen.per_character
    columns = -(-grid.columns // pen.per_character)
    name = f" {unit.name}" if unit.name else ""
    widest = max(9, len(number(columns / per_unit) + name) + 3)
    step = _round_step(widest / per_unit)
    axis = ""
    for tick in range(int(columns / per_unit / step) + 1):
        column = round(tick * step * per_unit)
        label = f"{pen.tick}{number(tick * step)}{name if tick else ''}"
        if column + len(label) <= columns:
            axis = axis.ljust(column) + label
    return axis


def _round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten."""
    power = 10.0 ** np.floor(np.log10(least))
    steps = [factor * power for factor in (1, 2, 5, 10)]
    return float(next(step for step in steps if step >= least * (1 - 1e-9)))


def _legend(timeline: Timeline, bands: list[Band], pen: Pen) -> Iterator[Text]:
    actions = timeline.program.actions
    for marks, meaning in legend(timeline):
        yield Text.assemble(*map(pen.swatch, marks), f" {meaning}")
    for second in actions.joined.nonzero()[0][:1].tolist():
        both = Mark(actions[second - 1].kind), Mark(actions[second].kind)
        yield Text.assemble(pen.pair(*both), " in one slot")
    has_wires = len(bands) > timeline.program.devices
    short = set(actions.kind[_is_moment(timeline)].tolist())
    if Kind.UPDATE in short:
        yield Text.assemble(("U", MOMENT), " update")
    if short - {Kind.UPDATE} and has_wires:
        yield Text.assemble(("P", MOMENT), f" {WORDS[Kind.SEND_ACTIVATION]}")
    if (actions.version > 0).any():
        yield Text("₀₁₂ version of the weights")
    yield Text(f"{pen.idle} idle", DIM)


def _flowed(phrases: Iterable[Text], width: int) -> Iterator[Text]:
    """Phrases side by side, on as many lines as it takes."""
    line = Text("")
    for phrase in phrases:
        if line and len(line) + 3 + len(phrase) > width:
            yield line
            line = Text("")
        line = Text.assemble(line, "   " if line else "", phrase)
    yield line

"""The terminal: one row for each device, time to the right.

`plain` draws in letters, for pipes, files and diffs; `coloured` in colours and, where labels
have no room, with two columns to a character. Knows the width it is given, not the screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap

import numpy as np
from rich.style import Style
from rich.text import Text

from weft.draw.bands import Band, BandsOf, devices
from weft.draw.caption import figures, legend, number, title
from weft.draw.grid import Grid, fit, usual_shortest
from weft.draw.marks import Mark, marker
from weft.draw.pens import DIM, Colours, HalfColumns, Letters, Pen
from weft.draw.units import Unit, time_unit
from weft.ir.actions import Index
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.timeline import Timeline

MOST_ROWS = 64  # of more devices, the first and the last are drawn
LEAST_ROOM = 8
SAMPLES = 4  # of a half column that holds several actions
UPDATE = Style(bold=True, reverse=True)


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
    pen = Colours(marker(timeline.program), lambda mark: mark.label if has_letters else mark.number)
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
        *_flowed(_legend(timeline, pen), width),
    ]
    return Text("\n").join(lines)


def _rows(timeline: Timeline, bands: list[Band], grid: Grid, pen: Pen) -> Iterator[Text]:
    gutter = _gutter(bands)
    hidden = _hidden(timeline.program.devices)
    for band, columns in zip(bands, grid.rows(timeline, bands), strict=True):
        if band.device not in hidden:
            row = pen.row(columns)
            if band.label.split()[-1] in (str(band.device), "compute"):
                row = _with_updates(row, timeline, grid, pen, band.device)
            yield Text.assemble((f"{band.label:>{gutter - 1}} ", DIM), row)
        elif band.device == hidden.start:
            yield Text(f"{'':{gutter}}{len(hidden)} more devices", DIM)


def _with_updates(row: Text, timeline: Timeline, grid: Grid, pen: Pen, device: int) -> Text:
    """A U at the end of what stands before an update that takes no time, where there is room."""
    moments = _moments(timeline)
    here = moments[timeline.program.device_of[moments] == device]
    columns = (timeline.end[here] - grid.opening) * grid.per_second / pen.per_character
    for column in np.rint(columns).astype(int).tolist():
        if 0 < column <= len(row) and row.plain[column - 1] in (" ", pen.idle):
            row = Text.assemble(row[: column - 1], ("U", UPDATE), row[column:])
    return row


def _moments(timeline: Timeline) -> Index:
    """Updates that take no time."""
    is_update = timeline.program.actions.kind == Kind.UPDATE
    return np.flatnonzero(is_update & (timeline.start == timeline.end))


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


def _legend(timeline: Timeline, pen: Pen) -> Iterator[Text]:
    actions = timeline.program.actions
    for marks, meaning in legend(timeline):
        yield Text.assemble(*map(pen.swatch, marks), f" {meaning}")
    for second in actions.joined.nonzero()[0][:1].tolist():
        both = Mark(actions[second - 1].kind), Mark(actions[second].kind)
        yield Text.assemble(pen.pair(*both), " in one slot")
    if len(_moments(timeline)):
        yield Text.assemble(("U", UPDATE), " update")
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

"""Boxes: the actions of a row as rectangles, two in one slot above each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.draw.bands import is_moment, shown_ends
from weft.draw.grid import IDLE, Grid, cells
from weft.draw.marks import Mark
from weft.draw.palette import HATCHED, Palette, shade
from weft.draw.svg.elements import element, group, rectangle
from weft.draw.svg.frame import Frame, Row
from weft.draw.view import View
from weft.ir.actions import Index
from weft.ir.earliest import Seconds
from weft.ir.kinds import Kind
from weft.timeline import Timeline

BETWEEN_COPIES = (Kind.REDUCE, Kind.GATHER)
SEAM = 1.0  # between boxes wide enough for it
MOMENT = 2.5  # width of what takes no time
ROUNDING = 1e-9  # seconds
FINEST = 2  # boxes of a lane to a pixel; of more, samples are drawn


class Box(NamedTuple):
    """A mark on the paper."""

    mark: Mark
    x: float
    y: float
    width: float
    height: float


def boxes(timeline: Timeline, view: View, frame: Frame, row: Row) -> list[Box]:
    """The boxes of a row; where lanes overlap in time, the first above the others."""
    marks_of = view.marker(timeline)
    lanes = [_stretches(timeline, frame, slots) for slots in row.band.lanes]
    if sum(len(lane.slots) for lane in lanes) > FINEST * frame.room:
        pieces = list(_sampled(timeline, frame, row))
    else:
        pieces = [piece for index in range(len(lanes)) for piece in _pieces(lanes, index, frame)]
    return [box for piece in pieces for box in _stacked(marks_of(piece.slot), piece, row)]


class _Piece(NamedTuple):
    """A slot from left to right; `part` of its row: all of it, or the upper or lower half."""

    slot: int
    left: float
    right: float
    part: tuple[float, float] = (0.0, 1.0)


class _Stretches(NamedTuple):
    """The slots of a lane that take time within a window, and when."""

    slots: Index
    start: Seconds
    end: Seconds


def _stretches(timeline: Timeline, frame: Frame, slots: Index) -> _Stretches:
    first = timeline.program.first_of_slot[slots]
    opening = float(timeline.start.min())
    start = np.clip(timeline.start[first] - opening, *frame.window)
    end = np.clip(shown_ends(timeline)[first] - opening, *frame.window)
    end[:-1] = np.minimum(end[:-1], start[1:])  # messages that wait for their reader
    here = end > start
    return _Stretches(slots[here], start[here], end[here])


def _pieces(lanes: list[_Stretches], index: int, frame: Frame) -> Iterator[_Piece]:
    """The slots of one lane; in half the row those at whose time another lane is busy."""
    lane = lanes[index]
    is_shared = np.zeros(len(lane.slots), np.bool_)
    for other in lanes[:index] + lanes[index + 1 :]:
        is_shared |= _is_met(lane, other)
    half = (0.0, 0.5) if index == 0 else (0.5, 1.0)
    rows = zip(*(column.tolist() for column in lane), is_shared.tolist(), strict=True)
    for slot, start, end, shared in rows:
        part = half if shared else (0.0, 1.0)
        yield _Piece(slot, frame.x(start), frame.x(end), part)


def _is_met(lane: _Stretches, other: _Stretches) -> NDArray[np.bool_]:
    """For each slot of a lane, whether one of the other runs meanwhile."""
    if not len(other.slots):
        return np.zeros(len(lane.slots), np.bool_)
    following = np.searchsorted(other.end, lane.start + ROUNDING, "right")
    exists = following < len(other.slots)
    begins = other.start[np.minimum(following, len(other.slots) - 1)]
    return np.asarray(exists & (begins < lane.end - ROUNDING))


def _sampled(timeline: Timeline, frame: Frame, row: Row) -> Iterator[_Piece]:
    """What fills each pixel of a row."""
    opening = float(timeline.start.min()) + frame.window.start
    grid = Grid(round(frame.right - frame.left), frame.per_second, opening)
    x = frame.left
    for slot, width in cells(grid.rows(timeline, [row.band])[0]):
        if slot != IDLE:
            yield _Piece(slot, x, x + width)
        x += width


def _stacked(marks: tuple[Mark, ...], piece: _Piece, row: Row) -> Iterator[Box]:
    width = piece.right - piece.left
    seam = SEAM if width > 4 * SEAM else 0.0
    top, bottom = (row.top + row.height * part for part in piece.part)
    height = (bottom - top) / len(marks)
    for place, mark in enumerate(marks):
        yield Box(mark, piece.left, top + place * height, width - seam, height)


def moments(timeline: Timeline, view: View, frame: Frame, row: Row) -> Iterator[Box]:
    """What takes no time and is worth a line: updates; sends, sums, gathers where they have a row.

    A sum often ends with a send: it has the lower half of the row, in front of the others.
    """
    found = list(_instants(timeline, view, frame, row))
    yield from (box for box in found if box.mark.kind not in BETWEEN_COPIES)
    for box in found:
        if box.mark.kind in BETWEEN_COPIES:
            yield box._replace(y=row.top + row.height / 2, height=row.height / 2 + 1)


def _instants(timeline: Timeline, view: View, frame: Frame, row: Row) -> Iterator[Box]:
    program, marks_of = timeline.program, view.marker(timeline)
    opening = float(timeline.start.min())
    for slots in row.band.lanes:
        first = program.first_of_slot[slots]
        times = timeline.end[first] - opening
        here = is_moment(timeline)[first] & (times >= frame.window.start)
        here &= times <= frame.window.end
        for slot, time in zip(slots[here].tolist(), times[here].tolist(), strict=True):
            x = frame.x(time) - MOMENT / 2
            yield Box(marks_of(slot)[0], x, row.top - 1, MOMENT, row.height + 2)


# colours


def drawn(marked: Iterable[Box], palette: Palette) -> Iterator[str]:
    """Boxes, those of one colour in a group."""
    by_fill: defaultdict[str, list[Box]] = defaultdict(list)
    for box in marked:
        by_fill[fill(box.mark, palette)].append(box)
    for colour, alike in by_fill.items():
        yield group((rectangle(*box[1:]) for box in alike), fill=colour)


def fill(mark: Mark, palette: Palette) -> str:
    """Its colour, hatched where it must stand out without colour."""
    code = shade(mark, palette).code
    return f"url(#{_hatch(code)})" if mark.kind in HATCHED else code


def hatchings(marked: Iterable[Mark], palette: Palette) -> Iterator[str]:
    """The patterns that `fill` refers to; equal names mean equal patterns."""
    for code in {shade(mark, palette).code: None for mark in marked if mark.kind in HATCHED}:
        lines = element("path", d="M0 0H6", stroke="#000", stroke_opacity=0.38, stroke_width=2)
        yield element(
            "pattern",
            rectangle(0, 0, 6, 6, fill=code),
            lines,
            id=_hatch(code),
            width=6,
            height=6,
            patternUnits="userSpaceOnUse",
            patternTransform="rotate(-45)",
        )


def _hatch(code: str) -> str:
    return f"weft-hatch-{code[1:]}"

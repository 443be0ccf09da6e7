"""Legend: what the marks of a picture mean, whatever they are drawn with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.draw.bands import Band, is_moment, shown_ends
from weft.draw.marks import Mark
from weft.draw.window import Window
from weft.ir.kinds import Kind, Part
from weft.timeline import Timeline

Mask: TypeAlias = NDArray[np.bool_]  # by action

SLACK = 1e-9  # of the whole time: what is in view for less is not
WORDS = {
    Kind.F: "forward",
    Kind.B: "backward",
    Kind.I: "input gradient",
    Kind.W: "weight gradient",
    Kind.R: "recompute",
    Kind.REDUCE: "sum of gradients",
    Kind.UPDATE: "update",
    Kind.GATHER: "gather of weights",
    Kind.SEND_ACTIVATION: "send to another device",
    Kind.OFFLOAD: "offload",
    Kind.ONLOAD: "load back",
}
PART_WORDS = {
    Part.ATTENTION: "attention",
    Part.DISPATCH: "dispatch to experts",
    Part.EXPERTS: "experts",
    Part.COMBINE: "combine",
}


MOMENT_KINDS = (
    (Kind.UPDATE,),
    (Kind.REDUCE,),
    (Kind.GATHER,),
    (Kind.SEND_ACTIVATION, Kind.SEND_GRADIENT),
)


class Sign(Enum):
    """How an entry shows its marks."""

    MARKS = "side by side"
    PAIR = "in one slot"
    MOMENT = "as what takes no time"
    VERSION = "as the digits below a label"


class Entry(NamedTuple):
    """Marks and what they mean."""

    sign: Sign
    marks: tuple[Mark, ...]
    meaning: str


def within(timeline: Timeline, windows: Iterable[Window]) -> Mask:
    """For each action, whether a part of it is in any of these windows."""
    opening, slack = float(timeline.start.min(initial=0.0)), SLACK * timeline.makespan
    start, end = timeline.start - opening, shown_ends(timeline) - opening
    found = np.zeros(len(start), np.bool_)
    for window in windows:
        found |= (start < window.end - slack) & (end > window.start + slack)
        found |= is_moment(timeline) & (start >= window.start) & (start <= window.end)
    return found


def legend(timeline: Timeline, bands: list[Band], is_within: Mask) -> Iterator[Entry]:
    """All that these bands show of actions that are in view."""
    actions = timeline.program.actions
    is_shown = _is_shown(timeline, bands) & is_within
    takes_time = is_shown & (shown_ends(timeline) > timeline.start)
    is_part = (actions.segment >= 0) & (actions.kind <= Kind.R)
    yield from _kinds(timeline, takes_time & ~is_part)
    yield from _parts(timeline, takes_time & is_part)
    for second in np.flatnonzero(actions.joined & is_shown)[:1].tolist():
        both = Mark(actions[second - 1].kind), Mark(actions[second].kind)
        yield Entry(Sign.PAIR, both, "in one slot")
    short = actions.kind[is_shown & is_moment(timeline)]
    for kinds in MOMENT_KINDS:
        if np.isin(short, kinds).any():
            yield Entry(Sign.MOMENT, (Mark(kinds[0]),), WORDS[kinds[0]])
    if (actions.version[is_shown & (actions.kind <= Kind.R)] > 0).any():
        yield Entry(Sign.VERSION, (), "version of the weights")


def _is_shown(timeline: Timeline, bands: list[Band]) -> Mask:
    """For each action, whether one of the bands has it."""
    shown = np.zeros(len(timeline.program.first_of_slot), np.bool_)
    for band in bands:
        for slots in band.lanes:
            shown[slots] = True
    return np.asarray(shown[timeline.program.slot_of])


def _kinds(timeline: Timeline, here: Mask) -> Iterator[Entry]:
    """A mark for each of a device's stages."""
    places = range(max(len(held) for held in timeline.program.placement.held))
    for kind in map(Kind, np.unique(timeline.program.actions.kind[here]).tolist()):
        if kind in WORDS:
            stages = places if kind.is_compute else range(1)
            marks = tuple(Mark(kind, place=place) for place in stages)
            yield Entry(Sign.MARKS, marks, WORDS[kind])


def _parts(timeline: Timeline, here: Mask) -> Iterator[Entry]:
    """A mark for the way there and one for the way back."""
    actions = timeline.program.actions
    back = Kind.I if (actions.kind[here] == Kind.I).any() else Kind.B
    for part in map(Part, np.unique(actions.segment[here] % len(Part)).tolist()):
        marks = tuple(Mark(kind, part=part) for kind in (Kind.F, back))
        yield Entry(Sign.MARKS, marks, PART_WORDS[part])

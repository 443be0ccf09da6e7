"""The frontier as a page: a plan's points in one file, each with the timeline that it opens."""

from __future__ import annotations

from collections.abc import Sequence

from weft.draw.units import memory_unit
from weft.errors import InputError
from weft.plan.frontier import SYNTHESISED, FrontierPoint
from weft.simulate import Step
from weft.web.helps import with_helps
from weft.web.page import assembled
from weft.web.plot import point
from weft.web.view import view

MOST_ACTIONS = 1_000_000  # of all timelines together; some 70 bytes of a page for each


def frontier_page(points: Sequence[FrontierPoint]) -> str:
    """A page with the tab of the frontier open; the fastest that fits is on show."""
    ranked = sorted(points, key=lambda one: (not one.is_fitting, one.seconds))
    timelines = [one.plan.timeline for one in ranked]
    actions = sum(len(timeline.program) for timeline in timelines)
    if actions > MOST_ACTIONS:
        raise InputError(
            f"{actions:,} actions; a page takes {MOST_ACTIONS:,}. Name fewer schedules, or a"
            " smaller batch."
        )
    names = [_name(one) for one in ranked]
    views = [view(timeline, name) for timeline, name in zip(timelines, names, strict=True)]
    places = [
        {"name": name, "kind": one.kind, "timeline": index, **point(timeline, Step.of(timeline))}
        for index, (one, name, timeline) in enumerate(zip(ranked, names, timelines, strict=True))
    ]
    content = {"timelines": with_helps(views, timelines), "points": places, "tab": "plot"}
    return assembled(content)


def _name(one: FrontierPoint) -> str:
    """Orders that were synthesised differ by the memory that they were made for."""
    if one.kind != SYNTHESISED:
        return one.title
    return f"{one.title}, {memory_unit(one.plan.timeline).amount(one.bytes)}"

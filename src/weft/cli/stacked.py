"""Stacked: what is compared in one page, one above the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from weft.cli.files import check_folder, write
from weft.errors import InputError
from weft.explain import is_fitting
from weft.simulate import Step
from weft.timeline import Timeline

MOST_ACTIONS = 1_000_000  # of all together; some 70 bytes of a page for each
BASE = "1f1b"  # what everybody knows, to compare the others with


class Stacked(NamedTuple):
    """A timeline as the page names it, and what of it is compared."""

    name: str
    step: Step
    timeline: Timeline


def check_name(output: Path) -> None:
    """Refuse a file that is no page, or cannot be."""
    if output.suffix.lower() != ".html":
        raise InputError(f"{output}: schedules are compared in a page; its name ends in .html")
    check_folder(output)


def write_stacked(output: Path, ranked: Sequence[Stacked]) -> None:
    """A page of all of them, and the plot of memory against time that opens each."""
    from weft.web.helps import with_helps  # which a comparison in the terminal does without
    from weft.web.page import assembled
    from weft.web.plot import point
    from weft.web.view import view

    actions = sum(len(one.timeline.program) for one in ranked)
    if actions > MOST_ACTIONS:
        raise InputError(
            f"{actions:,} actions; a page takes {MOST_ACTIONS:,}. Name fewer schedules."
        )
    shown = _base_first(ranked)
    views = [view(one.timeline, one.name, one.step) for one in shown]
    points = [
        {"name": one.name, "timeline": index, **point(one.timeline, one.step)}
        for index, one in enumerate(shown)
    ]
    helped = with_helps(views, [one.timeline for one in shown])
    write(output, assembled({"timelines": helped, "points": points}))


def _base_first(ranked: Sequence[Stacked]) -> list[Stacked]:
    """1f1b if it is there, as it is or as it fits; the others as they are ranked."""
    named = [one for one in ranked if one.name.split()[0] == BASE]
    base = next((one for one in named if is_fitting(one.timeline) is not False), None)
    base = base or next(iter(named or ranked))
    return [base, *(one for one in ranked if one is not base)]

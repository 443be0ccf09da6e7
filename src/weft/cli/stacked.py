"""Stacked: several schedules in one page, one above the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from weft.cli.files import check_folder, write
from weft.cli.requests import Pricing, cost_of, unfolded
from weft.errors import InputError
from weft.ir.program import Program
from weft.simulate import simulate

MOST_ACTIONS = 1_000_000  # of all together; some 70 bytes of a page for each


class Stacked(NamedTuple):
    """A schedule as the page names it, the time of its step, and its proved program."""

    name: str
    time: float
    program: Program


def check_name(output: Path) -> None:
    """Refuse a file that is no page, or cannot be."""
    if output.suffix.lower() != ".html":
        raise InputError(f"{output}: schedules are compared in a page; its name ends in .html")
    check_folder(output)


def write_stacked(output: Path, schedules: Sequence[Stacked], pricing: Pricing) -> None:
    """A page of all of them, and the plot of memory against time that opens each."""
    from weft.web.page import assembled  # which a comparison in the terminal does without
    from weft.web.view import view

    programs = [unfolded(schedule.program) for schedule in schedules]
    actions = sum(map(len, programs))
    if actions > MOST_ACTIONS:
        raise InputError(
            f"{actions:,} actions; a page takes {MOST_ACTIONS:,}. Name fewer schedules."
        )
    views, points = [], []
    for index, (schedule, program) in enumerate(zip(schedules, programs, strict=True)):
        timeline = simulate(program, cost_of(program, pricing))
        views.append(view(timeline, schedule.name))
        memory = max(timeline.memory.peaks)
        points.append(
            {
                "name": schedule.name,
                "time": schedule.time,
                "memory": memory,
                "timeline": index,
            }
        )
    write(output, assembled({"timelines": views, "points": points}))

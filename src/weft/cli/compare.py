"""`weft compare`: every schedule and variant at one shape, ranked by time, then by peak."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import click

from weft.cli.figures import figures
from weft.cli.options import Prices, Sizes, as_json, priced, schedule_names, sized
from weft.cli.output import show, show_json, table
from weft.cli.progress import with_progress
from weft.cli.requests import cost_of, pricing_of, proved, shape_of
from weft.cost import Cost, Share
from weft.draw.caption import number, percent
from weft.errors import InputError, ProgramError
from weft.schedules import REGISTRY, Schedule, Shape
from weft.timeline import Bubble

LOOPS = 2  # stages per device where a schedule takes any number: fewer would be no loop

COLUMNS = ("", "schedule", "K", "time", "wall", "span", "peak", "copies", "messages", "depth")
NOTE = """\
K       stages on each device; -k sets it for schedules that loop
wall    bubble with a barrier between steps; span: where steps overlap
peak    most microbatches in flight on a device, in shares of a device
copies  of the weights
depth   least depth of channels whose sends block"""


@click.command("compare")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=schedule_names)
@sized
@priced
@as_json
def command(names: tuple[str, ...], sizes: Sizes, prices: Prices, is_json: bool) -> None:
    """Compare all schedules and their variants at one shape, or those NAMEd.

    \b
      $ weft compare -d 4 -n 8
      $ weft compare 1f1b zbv dualpipev -d 8 -n 32 --lag 0.1

    Ranked by time, then by peak. Schedules that take any number of stages on a device get two,
    or as many as -k says. Those that refuse the shape follow with the reason.
    """
    schedules = [REGISTRY[name] for name in dict.fromkeys(names)] or list(REGISTRY)
    entries = list(_entries(schedules, sizes))
    pricing = pricing_of(prices)
    results = [_result(entry, pricing) for entry in with_progress(entries)]
    rows = sorted((row for row in results if isinstance(row, Row)), key=_rank)
    refusals = [refusal for refusal in results if isinstance(refusal, Refused)]
    if not rows:
        raise InputError(f"nothing to compare: {_title(refusals[0])} {refusals[0].reason}")
    if is_json:
        show_json(
            {
                "rows": [{"rank": rank, **row.described} for rank, row in enumerate(rows, start=1)],
                "refused": [refusal._asdict() for refusal in refusals],
            }
        )
    else:
        _show(rows, refusals)


class Entry(NamedTuple):
    """A schedule and the shape at which it is compared."""

    schedule: Schedule
    shape: Shape


class Row(NamedTuple):
    """What a schedule achieves; `described` holds all its figures."""

    name: str
    variant: str
    stages_per_device: int
    time: float
    peak: float
    weight_copies: float
    bubble: Bubble
    described: dict[str, object]


class Refused(NamedTuple):
    """A schedule that has no such shape, and why."""

    name: str
    variant: str
    reason: str


def _entries(schedules: Iterable[Schedule], sizes: Sizes) -> Iterator[Entry]:
    """Each schedule and each of its variants, at the sizes that it can take."""
    for schedule in schedules:
        least, most = schedule.stages_per_device
        loops = sizes.stages_per_device or max(least, LOOPS)
        own = replace(
            sizes,
            stages_per_device=loops if most is None and not sizes.graph else least,
            pipes=sizes.pipes if schedule.takes_pipes else 1,
        )
        for variant in (sizes.variant,) if sizes.variant else ("", *schedule.variants):
            yield Entry(schedule, shape_of(schedule, replace(own, variant=variant)))


def _result(entry: Entry, pricing: Cost | Share) -> Row | Refused:
    schedule, shape = entry
    refusal = schedule.accepts(shape)
    if refusal is not None:
        reason = f"{refusal.reason}; nearest: {shape.changes_to(refusal.nearest)}"
        return Refused(schedule.name, shape.variant, reason)
    try:
        program = schedule.program(shape)
        timeline, proof = proved(program, cost_of(program, pricing))
    except ProgramError as error:
        return Refused(schedule.name, shape.variant, str(error.findings[0]))
    except InputError as error:
        return Refused(schedule.name, shape.variant, str(error))
    return Row(
        name=schedule.name,
        variant=shape.variant,
        stages_per_device=shape.stages_per_device,
        time=timeline.makespan,
        peak=max(timeline.peak_activations),
        weight_copies=program.placement.weight_copies,
        bubble=timeline.bubble,
        described={
            "variant": shape.variant,
            "stages_per_device": shape.stages_per_device,
            **figures(timeline, proof),
        },
    )


def _rank(row: Row) -> tuple[float, float]:
    """Time first, as far as sums of floats can tell it; ties keep the registry's order."""
    return float(f"{row.time:.9g}"), row.peak


def _show(rows: list[Row], refusals: list[Refused]) -> None:
    show(table(COLUMNS, [_cells(rank, row) for rank, row in enumerate(rows, start=1)]))
    show("", NOTE)
    if refusals:
        why = [(_title(refusal), refusal.reason) for refusal in refusals]
        show("", "Not at this shape:", table(("schedule", "why"), why))


def _title(row: Row | Refused) -> str:
    return f"{row.name} ({row.variant})" if row.variant else row.name


def _cells(rank: int, row: Row) -> list[str]:
    return [
        str(rank),
        _title(row),
        str(row.stages_per_device),
        number(row.time),
        percent(row.bubble.wall),
        percent(row.bubble.span),
        number(row.peak),
        number(row.weight_copies),
        str(row.described["messages"]),
        str(row.described["channel_depth"]),
    ]

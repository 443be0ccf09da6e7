"""`weft compare`: schedules, their variants and files at one shape, ranked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click

from weft.cli.asked import priced
from weft.cli.contenders import contenders
from weft.cli.figures import drawn, figures
from weft.cli.help import Sectioned
from weft.cli.names import program_names
from weft.cli.options import SIZES, as_json, bundled, jittering
from weft.cli.output import facts, show, show_json, table
from weft.cli.progress import with_progress
from weft.cli.stacked import Stacked, check_name, write_stacked
from weft.cost.units import BYTES, NONE, SECONDS, Unit, fitting
from weft.draw.caption import number, percent
from weft.draw.units import is_physical
from weft.errors import InputError
from weft.explain import OFFLOADED, is_fitting
from weft.ir.program import Program
from weft.ir.versions import resident_versions, staleness
from weft.request import Attempt, Costs, Refused, Request, Sizes, attempts
from weft.simulate import Step
from weft.timeline import Bubble


@click.command("compare", cls=Sectioned)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=program_names)
@bundled("sizes", Sizes, SIZES)
@priced
@jittering
@as_json
@click.option(
    *("-o", "--output"),
    type=click.Path(path_type=Path),
    metavar="FILE.html",
    help="Write a page, one timeline above the other.",
)
def command(
    names: tuple[str, ...],
    sizes: Sizes,
    costs: Costs,
    jitter: str | float | None,
    is_json: bool,
    output: Path | None,
) -> None:
    """Compare all schedules and their variants at one shape, or only the NAMEs given.

    \b
      $ weft compare 1f1b zbv -d 4 -n 8
         schedule  K  time   wall   span  peak  copies  messages  depth
      1  zbv       2  25.5   5.9%   0.0%     4       1        96      1
      2  1f1b      1    33  27.3%  27.3%     4       1        48      1

    \b
      $ weft compare -d 4 -n 8                             every schedule and variant
      $ weft compare 1f1b zbv dualpipev -d 8 -n 32 --latency 0.1
      $ weft compare -d 8 -n 24 --model gpt-6.2b --device a100
      $ weft compare -d 8 -n 32 --jitter 0.05              where durations vary
      $ weft export zbv -d 4 -n 8 -o mine.txt
      $ weft compare 1f1b mine.txt                         at the shape that mine.txt has
      $ weft compare 1f1b zb-h1 -d 4 -n 8 -o both.html     one above the other, in a browser

    NAME is a schedule or the file of a program. Ranked by time, then by staleness, then by peak;
    what needs more memory than a device has comes last. Such a schedule is ranked again with
    --recompute all and with --offload auto where these make it fit, or with both where only both
    do. Schedules that take any number of stages on a device get two, or as many as -k says.
    Schedules that do not take the shape come at the end, with the reason. With --jitter the time
    on average counts; in JSON, jitter {mean, low, high, draws} are times as long as without.
    """
    asked, terms = contenders(names, sizes, costs)
    if output is not None:
        check_name(output)
    measure = Measure(terms.microbatches, jitter)
    found = [result for one in with_progress(asked) for result in _results(one, measure)]
    rows = sorted((row for row in found if isinstance(row, Row)), key=_rank)
    refusals = [refusal for refusal in found if isinstance(refusal, Refused)]
    if not rows:
        raise InputError(f"nothing to compare: {refusals[0].request.title} {refusals[0].reason}")
    if output is not None:
        write_stacked(output, [_stacked(row) for row in rows])
    elif is_json:
        show_json(
            {
                "rows": [{"rank": rank, **row.described} for rank, row in enumerate(rows, start=1)],
                "refused": [_refused(refusal) for refusal in refusals],
            }
        )
    else:
        _show(rows, refusals)


class Measure(NamedTuple):
    """What all are compared by: a step of this many microbatches, and how much durations vary."""

    microbatches: int
    jitter: str | float | None


class Row(NamedTuple):
    """What a contender achieves; `described` holds all its figures.

    slower       how many times as long it takes with jitter
    is_physical  whether its times are seconds
    is_fitting   whether the memory of a device suffices; None where that has no limit
    """

    request: Request
    step: Step
    stages_per_device: int
    time: float
    slower: float | None
    peak: float
    memory: float
    is_physical: bool
    is_fitting: bool | None
    mfu: float | None
    weight_copies: float
    staleness: int
    messages: int
    bubble: Bubble
    described: dict[str, object]


def _results(asked: Request | Refused, measure: Measure) -> Iterator[Row | Refused]:
    """Rows alone: of many programs not all may be kept, so a request is left as it was."""
    if isinstance(asked, Refused):
        yield asked
        return
    for found in attempts(replace(asked)):
        yield found if isinstance(found, Refused) else _row(found, measure)


def _stacked(row: Row) -> Stacked:
    return Stacked(row.request.title, row.step, row.request.timed()[0])


def _refused(refusal: Refused) -> dict[str, object]:
    request = refusal.request
    return {"name": request.name, "variant": request.sizes.variant, "reason": refusal.reason}


def _row(attempt: Attempt, measure: Measure) -> Row:
    request, timeline, proof = attempt
    program = timeline.program
    step, jitter = Step(measure.microbatches, request.settled()), measure.jitter
    jittered = None if jitter is None else request.jittered(jitter, timeline)
    speed = request.costs.speed(timeline, step.settled)
    stages = -(-program.stages // program.devices)
    return Row(
        request=replace(request),
        step=step,
        stages_per_device=stages,
        time=step.seconds(timeline),
        slower=None if jittered is None else jittered.mean,
        peak=max(timeline.peak_activations),
        memory=max(timeline.memory.peaks),
        is_physical=is_physical(timeline),
        is_fitting=is_fitting(timeline),
        mfu=speed.mfu if speed else None,
        weight_copies=_weights(program),
        staleness=max(staleness(program)),
        messages=round(program.messages * step.share(timeline)),
        bubble=step.bubble(timeline),
        described={
            "variant": request.sizes.variant,
            "relief": str(request.passes),
            "time": step.seconds(timeline),
            "stages_per_device": stages,
            **figures(timeline, proof, step.settled, speed, jittered),
            "name": request.name,
        },
    )


def _weights(program: Program) -> float:
    """Most copies and versions of weights on a device, in shares of the model."""
    versions, share = resident_versions(program), program.placement.share
    held = program.placement.held
    return max(sum(versions[stage] for _, stage in stages) for stages in held) * share


def _rank(row: Row) -> tuple[bool, float, int, float]:
    """What fits first; time as exactly as sums of floats have it; ties as in the registry."""
    return row.is_fitting is False, float(f"{_expected(row):.9g}"), row.staleness, row.peak


def _expected(row: Row) -> float:
    """Its time, with jitter where that was asked for."""
    return row.time * (row.slower or 1.0)


class Column(NamedTuple):
    """What a column is called, what it says of a row, and what that means."""

    heading: str
    cell: Callable[[Row], str]
    note: str = ""


def _columns(rows: list[Row]) -> list[Column]:
    """The columns in which these rows have something to say."""
    looped = "stages on each device; -k sets it for schedules that loop"
    in_flight = "most microbatches in flight on a device, in shares of a device"
    copies = "of the weights, versions included"
    blocking = "least depth of channels whose sends block"
    return [
        Column("schedule", lambda row: row.request.title),
        Column("K", lambda row: str(row.stages_per_device), looped),
        *_time_columns(rows),
        Column("peak", lambda row: number(row.peak), in_flight),
        *_memory_columns(rows),
        Column("copies", lambda row: number(row.weight_copies), copies),
        *_staleness_columns(rows),
        Column("messages", lambda row: str(row.messages), "of a step"),
        Column("depth", lambda row: str(row.described["channel_depth"]), blocking),
    ]


def _time_columns(rows: list[Row]) -> Iterator[Column]:
    unit = fitting(max(row.time for row in rows), SECONDS) if rows[0].is_physical else NONE
    of_step = "of a step; for asynchronous schedules that of N microbatches, once settled"
    yield Column(_in("time", unit), lambda row: unit.number(row.time), of_step)
    if rows[0].slower is not None:
        note = "time where durations vary, on average; it ranks"
        yield Column(_in("jitter", unit), lambda row: unit.number(drawn(_expected(row))), note)
        yield Column("longer", lambda row: percent((row.slower or 1.0) - 1), "by jitter")
    yield Column(
        "wall", lambda row: percent(row.bubble.wall), "bubble with a barrier between steps"
    )
    yield Column("span", lambda row: percent(row.bubble.span), "bubble where steps overlap")
    if any(row.mfu is not None for row in rows):
        note = "FLOPs of the model, of what all devices can do in that time"
        yield Column("MFU", lambda row: "-" if row.mfu is None else percent(row.mfu), note)


def _staleness_columns(rows: list[Row]) -> Iterator[Column]:
    if any(row.staleness for row in rows):
        note = "most updates missing in the weights that are used; 0: gradients are exact"
        yield Column("stale", lambda row: str(row.staleness), note)


def _memory_columns(rows: list[Row]) -> Iterator[Column]:
    has_limit = rows[0].is_fitting is not None
    unit = fitting(max(row.memory for row in rows), BYTES)
    if rows[0].is_physical or has_limit:
        note = "most that a device holds"
        yield Column(_in("memory", unit), lambda row: unit.number(row.memory), note)
    if has_limit:
        note = "whether it has as much"
        yield Column("fits", lambda row: "yes" if row.is_fitting else "no", note)


def _in(heading: str, unit: Unit) -> str:
    return f"{heading}, {unit.name}" if unit.name else heading


def _show(rows: list[Row], refusals: list[Refused]) -> None:
    columns = list(_columns(rows))
    cells = [[str(rank), *(c.cell(row) for c in columns)] for rank, row in enumerate(rows, start=1)]
    show(table(["", *(column.heading for column in columns)], cells))
    show("", facts([(column.heading, column.note) for column in columns if column.note]))
    if any(row.request.passes.offload for row in rows):
        show("", OFFLOADED)
    if refusals:
        why = [(refusal.request.title, refusal.reason) for refusal in refusals]
        show("", "Not at this shape:", table(("schedule", "why"), why))

"""`weft list`: which schedules there are, and what each claims and needs."""

from __future__ import annotations

from collections.abc import Iterator

import click

from weft.cli.options import as_json, schedule_names
from weft.cli.output import facts, show, show_json, table
from weft.schedules import REGISTRY, Schedule


@click.command("list")
@click.argument("name", required=False, shell_complete=schedule_names)
@as_json
def command(name: str | None, is_json: bool) -> None:
    """List every schedule, or all about the schedule NAME.

    \b
      $ weft list
      $ weft list zbv

    Of one schedule: its paper, the time and peak that it claims, what it needs, its variants.
    """
    if name is not None:
        schedule = REGISTRY[name]
        if is_json:
            show_json(_described(schedule))
        else:
            show(f"{schedule.name}: {schedule.summary}", "", facts(_about(schedule)))
    elif is_json:
        show_json({"schedules": [_described(schedule) for schedule in REGISTRY]})
    else:
        rows = [(schedule.name, _stages(schedule), schedule.summary) for schedule in REGISTRY]
        show(table(("schedule", "K", "in short"), rows))
        show("", "K is the number of stages on each device. All about one: weft list NAME")


def _about(schedule: Schedule) -> Iterator[tuple[str, str]]:
    claims = schedule.claims
    yield "paper", schedule.paper
    yield "time", f"{claims.formula}  ({_MEASURES[claims.measure]})"
    yield "peak", f"{claims.peak_formula}  (microbatches in flight, in shares of a device)"
    yield "stages", f"{_stages(schedule).replace('+', ' or more')} on each device"
    for need in schedule.needs:
        yield "needs", need.words
    for variant, meaning in schedule.variants.items():
        yield f"--variant {variant}", meaning
    yield "try", _example(schedule)


_MEASURES = {
    "wall": "makespan of a step that a barrier ends",
    "span": "longest span of one device, where steps overlap",
}


def _example(schedule: Schedule) -> str:
    least, most = schedule.stages_per_device
    loops = " -k 2" if most is None and least < 2 else ""
    return f"weft draw {schedule.name} -d 4 -n 8{loops}"


def _stages(schedule: Schedule) -> str:
    least, most = schedule.stages_per_device
    return str(least) if most == least else f"{least}+"


def _described(schedule: Schedule) -> dict[str, object]:
    claims, (least, most) = schedule.claims, schedule.stages_per_device
    return {
        "name": schedule.name,
        "summary": schedule.summary,
        "paper": schedule.paper,
        "claims": {
            "time": claims.formula,
            "measure": claims.measure,
            "peak_activations": claims.peak_formula,
        },
        "stages_per_device": {"least": least, "most": most},
        "needs": [need.words for need in schedule.needs],
        "variants": dict(schedule.variants),
        "takes_graph": schedule.takes_graph,
        "takes_pipes": schedule.takes_pipes,
    }

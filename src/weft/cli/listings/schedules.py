"""Schedules: what each claims and needs."""

from __future__ import annotations

from collections.abc import Iterator

from weft.cli.listings.listing import Listing
from weft.schedules import REGISTRY, Schedule


def _row(name: str, schedule: Schedule) -> tuple[str, ...]:
    return name, _stages(schedule), schedule.summary


def _title(name: str, schedule: Schedule) -> str:
    return f"{name}: {schedule.summary}"


def _details(name: str, schedule: Schedule) -> Iterator[tuple[str, str]]:
    claims = schedule.claims
    yield "paper", schedule.paper
    yield "time", f"{claims.formula}  ({_MEASURES[claims.measure]})"
    yield "peak", f"{claims.peak_formula}  (microbatches in flight, in shares of a device)"
    usual = "" if schedule.stages_per_device[1] else f"; {schedule.stages_for()} unless -k says so"
    yield "stages", f"{_stages(schedule).replace('+', ' or more')} on each device{usual}"
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
    stages = schedule.stages_for()
    loops = f" -k {stages}" if stages > schedule.stages_per_device[0] else ""
    return f"weft draw {schedule.name} -d 4 -n 8{loops}"


def _stages(schedule: Schedule) -> str:
    least, most = schedule.stages_per_device
    return str(least) if most == least else f"{least}+"


def _described(name: str, schedule: Schedule) -> dict[str, object]:
    claims, (least, most) = schedule.claims, schedule.stages_per_device
    return {
        "name": name,
        "summary": schedule.summary,
        "paper": schedule.paper,
        "claims": {
            "time": claims.formula,
            "measure": claims.measure,
            "peak_activations": claims.peak_formula,
        },
        "stages_per_device": {"least": least, "most": most, "default": schedule.stages_for()},
        "needs": [need.words for need in schedule.needs],
        "variants": dict(schedule.variants),
        "takes_graph": schedule.takes_graph,
        "takes_pipes": schedule.takes_pipes,
        "takes_round": schedule.takes_round,
        "is_asynchronous": schedule.is_asynchronous,
    }


LISTING = Listing(
    entries={schedule.name: schedule for schedule in REGISTRY},
    find=REGISTRY.__getitem__,
    columns=("schedule", "K", "in short"),
    row=_row,
    title=_title,
    details=_details,
    described=_described,
    footer="K is the number of stages on each device. All about one: weft list NAME",
)

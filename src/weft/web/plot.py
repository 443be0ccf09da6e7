"""The plot: time and memory of a schedule and its variants at one shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft.errors import ProgramError, WeftError
from weft.explain import Relief, is_fitting, reliefs
from weft.simulate import Step
from weft.timeline import Timeline
from weft.web.requests import Request, check_size

UPDATES = 4  # of a run that does not flush, so that it fills


def points(request: Request) -> list[dict[str, object]]:
    """A point for each variant of a schedule, and for what makes one fit that does not."""
    stages = request.schedule.stages_for(request.shape.stages_per_device)
    shape = request.shape.but(stages_per_device=stages, updates=UPDATES)
    plain = replace(request, relief=Relief.NONE, has_streams=False)
    return [
        found
        for variant in ("", *request.schedule.variants)
        for found in _points(replace(plain, shape=shape.but(variant=variant)))
    ]


def point(timeline: Timeline, step: Step) -> dict[str, object]:
    """Where a timeline lies, and whether a device has as much memory."""
    return {
        "time": step.seconds(timeline),
        "memory": max(timeline.memory.peaks),
        "is_fitting": is_fitting(timeline) is not False,
    }


def _points(request: Request) -> Iterator[dict[str, object]]:
    try:
        check_size(request.schedule, request.shape)
        timeline = request.timeline()
        yield _described(request) | _placed(request, timeline)
        for relief, again in reliefs(timeline):
            eased = replace(request, relief=relief)
            yield _described(eased) | _placed(eased, again)
    except ProgramError as error:
        yield _described(request) | {"refused": str(error.findings[0])}
    except WeftError as error:
        yield _described(request) | {"refused": str(error)}


def _placed(request: Request, timeline: Timeline) -> dict[str, object]:
    return point(timeline, Step(request.shape.microbatches, request.settled()))


def _described(request: Request) -> dict[str, object]:
    return {
        "name": request.name,
        "schedule": request.schedule.name,
        "variant": request.shape.variant,
        "stages_per_device": request.shape.stages_per_device,
        "relief": request.relief.value,
    }

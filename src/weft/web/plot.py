"""The plot: time and memory of a schedule and its variants at one shape."""

from __future__ import annotations

from dataclasses import replace

from weft.errors import ProgramError, WeftError
from weft.explain import is_fitting
from weft.simulate import Step, settled_of
from weft.timeline import Timeline
from weft.web.requests import Request, check_size

UPDATES = 4  # of a run that does not flush, so that it fills


def points(request: Request) -> list[dict[str, object]]:
    """A point for each variant of a request's schedule, at its shape and costs."""
    asked = request.shape.stages_per_device
    stages = request.schedule.stages_for(asked if asked > 1 else None)
    shape = request.shape.but(stages_per_device=stages, updates=UPDATES)
    variants = ("", *request.schedule.variants)
    return [_point(replace(request, shape=shape.but(variant=variant))) for variant in variants]


def point(timeline: Timeline, step: Step) -> dict[str, object]:
    """Where a timeline lies, and whether a device has as much memory."""
    return {
        "time": step.seconds(timeline),
        "memory": max(timeline.memory.peaks),
        "is_fitting": is_fitting(timeline) is not False,
    }


def _point(request: Request) -> dict[str, object]:
    described = {
        "name": request.name,
        "schedule": request.schedule.name,
        "variant": request.shape.variant,
        "stages_per_device": request.shape.stages_per_device,
    }
    try:
        check_size(request.schedule, request.shape)
        timeline = replace(request, has_streams=False).timeline()
        settled = settled_of(request.schedule, request.shape, request.prices.cost)
        step = Step(request.shape.microbatches, settled)
        return described | point(timeline, step)
    except ProgramError as error:
        return described | {"refused": str(error.findings[0])}
    except WeftError as error:
        return described | {"refused": str(error)}

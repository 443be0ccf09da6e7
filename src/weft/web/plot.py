"""The plot: time and memory of a schedule and its variants at one shape."""

from __future__ import annotations

from dataclasses import replace

from weft.errors import ProgramError, WeftError
from weft.simulate import steady
from weft.timeline import Timeline
from weft.web.requests import Request, check_size

LOOPS = 2  # stages per device where a schedule takes any number: fewer would be no loop


def points(request: Request) -> list[dict[str, object]]:
    """A point for each variant of a request's schedule, at its shape and costs."""
    least, most = request.schedule.stages_per_device
    asked = request.shape.stages_per_device
    stages = least if most is not None else max(least, LOOPS, asked)
    shape = request.shape.but(stages_per_device=stages)
    variants = ("", *request.schedule.variants)
    return [_point(replace(request, shape=shape.but(variant=variant))) for variant in variants]


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
        return described | {"time": _step(request, timeline), "memory": max(timeline.memory.peaks)}
    except ProgramError as error:
        return described | {"refused": str(error.findings[0])}
    except WeftError as error:
        return described | {"refused": str(error)}


def _step(request: Request, timeline: Timeline) -> float:
    """Seconds for the microbatches of a step; without a flush, once settled."""
    if not request.schedule.is_asynchronous:
        return timeline.makespan
    shape = request.shape
    program = request.schedule.program(shape.but(updates=2 * shape.devices + 2))
    period = steady(program, request.prices.cost(program)).period
    return period * shape.microbatches / program.microbatches

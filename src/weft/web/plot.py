"""The plot: time and memory of a schedule and its variants at one shape."""

from __future__ import annotations

from dataclasses import replace

from weft.explain import is_fitting
from weft.request import Attempt, Passes, Refused, Request, attempts, variants
from weft.simulate import Step
from weft.timeline import Timeline


def points(request: Request) -> list[dict[str, object]]:
    """A point for each variant of a schedule, and for what makes one fit that does not."""
    sizes = replace(request.sizes, variant="", updates=None)  # as many updates as fill it
    plain = replace(request, sizes=sizes, passes=Passes())
    return [
        _described(found.request) | _found(found)
        for variant in variants(plain)
        for found in attempts(variant)
    ]


def point(timeline: Timeline, step: Step) -> dict[str, object]:
    """Where a timeline lies, and whether a device has as much memory."""
    return {
        "time": step.seconds(timeline),
        "memory": max(timeline.memory.peaks),
        "is_fitting": is_fitting(timeline) is not False,
    }


def _found(found: Attempt | Refused) -> dict[str, object]:
    if isinstance(found, Refused):
        return {"refused": found.reason}
    request = found.request
    return point(found.timeline, Step(request.shape.microbatches, request.settled()))


def _described(request: Request) -> dict[str, object]:
    return {
        "name": request.title,
        "schedule": request.name,
        "variant": request.sizes.variant,
        "stages_per_device": request.sizes.stages_per_device,
        "relief": str(request.passes),
    }

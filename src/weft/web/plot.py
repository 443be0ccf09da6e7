"""The plot: time and memory of a schedule and its variants at one shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft.errors import ProgramError, WeftError
from weft.explain import is_fitting
from weft.ir.versions import staleness
from weft.request import variants
from weft.simulate import Steady, Step
from weft.timeline import Timeline
from weft.web.reliefs import BOTH, SINGLE
from weft.web.requests import PageRequest
from weft.web.shortage import state_of_devices

FEW = 20_000  # actions of a program that is offloaded while somebody waits
MOST_SETTLED = 8_192  # actions of a run that settles while somebody waits


def points(request: PageRequest) -> list[dict[str, object]]:
    """A point for each variant of a schedule, and for what makes one fit that does not."""
    sizes = replace(request.sizes, variant="", updates=None)  # as many updates as fill it
    plain = replace(request.relieved(""), sizes=sizes, has_streams=False)
    found = []
    for variant in variants(plain):
        assert isinstance(variant, PageRequest)
        found += _points(variant)
    return found


def point(timeline: Timeline, step: Step) -> dict[str, object]:
    """Where a timeline lies, whether a device has as much memory, and weights are the newest."""
    return {
        "time": step.seconds(timeline),
        "memory": max(timeline.memory.peaks),
        "is_fitting": is_fitting(timeline) is not False,
        "is_stale": max(staleness(timeline.program)) > 0,
    }


def _points(request: PageRequest) -> list[dict[str, object]]:
    try:
        if refusal := request.schedule.accepts(request.shape):
            nearest = request.shape.changes_to(refusal.nearest)
            return [_described(request) | {"refused": f"{refusal.reason}; nearest: {nearest}"}]
        timeline = request.timeline()
        return [_found(request, timeline), *_eased(request, timeline)]
    except ProgramError as error:
        return [_described(request) | {"refused": str(error.findings[0])}]
    except WeftError as error:
        return [_described(request) | {"refused": str(error)}]


def _eased(request: PageRequest, timeline: Timeline) -> list[dict[str, object]]:
    """What makes it fit that does not: each single relief, or else two together."""
    state = max(state_of_devices(timeline))
    if is_fitting(timeline) is not False or state > timeline.cost.memory.capacity:
        return []
    is_large = len(timeline.program) > FEW
    for among in (SINGLE, BOTH):
        offered = [one for one in among if not (is_large and "--offload" in one)]
        found = [*_fitting(request, offered)]
        if found:
            return found
    return []


def _fitting(request: PageRequest, reliefs: list[str]) -> Iterator[dict[str, object]]:
    for relief in reliefs:
        try:
            eased = request.relieved(relief)
            timeline = eased.timeline()
        except WeftError:
            continue
        if is_fitting(timeline):
            yield _found(eased, timeline)


def _found(request: PageRequest, timeline: Timeline) -> dict[str, object]:
    step = Step(request.shape.microbatches, settled_of(request))
    is_partial = request.ends_with_update and request.schedule.is_asynchronous
    words = {"words": "without sums over copies"} if is_partial else {}
    return _described(request) | point(timeline, step) | words


def settled_of(request: PageRequest) -> Steady | None:
    """What an asynchronous run settles into, where finding out keeps nobody waiting."""
    actions = 2 * request.shape.stages * request.shape.microbatches
    return request.settled() if actions <= MOST_SETTLED else None


def _described(request: PageRequest) -> dict[str, object]:
    return {
        "name": request.title,
        "schedule": request.name,
        "variant": request.sizes.variant,
        "stages_per_device": request.sizes.stages_per_device,
        "relief": request.relief,
    }

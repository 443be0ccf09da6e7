"""Answers: what a live page may ask, each a function from JSON to JSON.

Nothing that is sent is executed: a file is read as data, and refused with a message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from weft.cost import DEVICES, MODELS
from weft.errors import InputError, WeftError
from weft.ir.program import Program
from weft.request import Plan
from weft.request.values import Whole, read
from weft.schedules import REGISTRY, Schedule
from weft.simulate import Steady, Step, steady
from weft.timeline import Timeline
from weft.verify import check
from weft.web.descriptions import described
from weft.web.figures import step_of
from weft.web.files import read_file
from weft.web.helps import what_helps
from weft.web.plot import MOST_SETTLED, points, settled_of
from weft.web.reliefs import OFFERED
from weft.web.requests import LIMITS, PageRequest, read_costs, read_request, step_timeline
from weft.web.synthesised import synthesised
from weft.web.view import view
from weft.web.ways import ways

Answer: TypeAlias = dict[str, object]

MOST_TIMELINES = 6
MOST_BUDGETS = 100
MOST_OF_NAME = 80  # letters of a file's name that errors repeat


def catalogue() -> Answer:
    """What a reader may choose."""
    return {
        "schedules": [_described(schedule) for schedule in REGISTRY],
        "models": [{"name": name, "summary": model.source} for name, model in MODELS.items()],
        "devices": [{"name": name, "summary": device.source} for name, device in DEVICES.items()],
        "reliefs": OFFERED,
    }


def _described(schedule: Schedule) -> Answer:
    """`stages_per_device` is what it is shown with first; `loops` says that any number goes."""
    return {
        "name": schedule.name,
        "summary": schedule.summary,
        "variants": list(schedule.variants),
        "stages_per_device": schedule.stages_for(),
        "loops": schedule.stages_per_device[1] is None,
        "is_asynchronous": schedule.is_asynchronous,
    }


def timelines(asked: Mapping[str, object]) -> Answer:
    """The timelines of some requests; of each that has none, the reason and what would work."""
    given = asked.get("requests")
    if not isinstance(given, list) or not 1 <= len(given) <= MOST_TIMELINES:
        raise InputError(f"1 to {MOST_TIMELINES} requests are answered at once")
    answers = [_answer(one) for one in given]
    return {"answers": answers}


def _answer(given: object) -> Answer:
    try:
        request = read_request(given)
        refusal = request.schedule.accepts(request.shape)
    except WeftError as error:
        return {"refused": str(error)}
    if refusal is not None:
        return _refused(request, refusal.reason, refusal.nearest)
    try:
        timeline = request.timeline()
        settled = settled_of(request)
        step = step_of(timeline, request.shape.microbatches, settled)
        speed = request.costs.speed(timeline, settled)
        return {"timeline": view(timeline, request.title, step, speed)}
    except WeftError as error:
        return {"refused": f"{request.title}: {error}"}


def _refused(request: PageRequest, reason: str, nearest: object) -> Answer:
    fields = ("devices", "microbatches", "stages_per_device", "variant")
    return {
        "refused": f"{request.title} {reason}.",
        "nearest": {name: getattr(nearest, name) for name in fields},
    }


def plot(asked: Mapping[str, object]) -> Answer:
    """Time and memory of a schedule and its variants; a page asks for one after the other."""
    return {"points": points(read_request(asked.get("request")))}


def synthesis(asked: Mapping[str, object]) -> Answer:
    """An order that was made for a budget of memory; a page asks for one after the other."""
    given = asked.get("request")
    index = read(Whole(least=0, most=MOST_BUDGETS), asked.get("index", 0), "index")
    return synthesised(read_request(given), index, given)


def helped(asked: Mapping[str, object]) -> Answer:
    """What would shorten the step of a request."""
    return {"helps": what_helps(read_request(asked.get("request")).timeline())}


def fitted(asked: Mapping[str, object]) -> Answer:
    """What would make a request fit into memory."""
    given = asked.get("request")
    if not isinstance(given, Mapping):
        raise InputError("a request is an object")
    return ways(given)


def opened(asked: Mapping[str, object]) -> Answer:
    """The timeline of a file: one that was written down, or of a program or plan, proved and timed.

    A run is compared by as many microbatches as the page's own steps have. A model, a device or a
    cluster has no timeline: it is described, for the page to ask with.
    """
    name, text = asked.get("name"), asked.get("text")
    if not isinstance(name, str) or not isinstance(text, str):
        raise InputError("a file has a name and a text")
    found, settled, title = read_file(text, name[:MOST_OF_NAME]), None, ""
    match found:
        case Program():
            found, settled = _timed(found, asked.get("costs", {}))
        case Plan():
            LIMITS.unfolded(found.program)
            title, found = found.source, found.timeline
        case Timeline():
            check(LIMITS.unfolded(found.program))  # what cannot have run has no critical path
        case _:
            return {"described": described(found, name, text)}
    own = Step.of(found).microbatches
    count = Whole(most=max(own, LIMITS.microbatches))
    microbatches = read(count, asked.get("microbatches", own), "microbatches")
    step = step_of(found, microbatches, settled)
    return {"timelines": [view(found, title, step) | {"helps": what_helps(found)}]}


def _timed(program: Program, given: object) -> tuple[Timeline, Steady | None]:
    """Its timeline, and where it repeats what it settles into."""
    costs = read_costs(given, program.devices)
    is_small = len(program) <= MOST_SETTLED
    settled = steady(program, costs.of(program)) if program.period and is_small else None
    return step_timeline(LIMITS.unfolded(program), costs, given), settled


ANSWERS: dict[str, Callable[[Mapping[str, object]], Answer]] = {
    "/timelines": timelines,
    "/plot": plot,
    "/synthesis": synthesis,
    "/helps": helped,
    "/fit": fitted,
    "/open": opened,
}

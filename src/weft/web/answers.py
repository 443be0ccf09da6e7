"""Answers: what a live page may ask, each a function from JSON to JSON.

Nothing that is sent is executed: a file is read as data, and refused with a message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from weft.cost import DEVICES, MODELS
from weft.errors import InputError, WeftError
from weft.explain import Relief
from weft.ir.program import Program
from weft.notation import from_json, from_text, from_torch_csv
from weft.request import Costs
from weft.request.values import Whole, read
from weft.schedules import REGISTRY, Schedule
from weft.simulate import Steady, Step, simulate, steady
from weft.timeline import Timeline
from weft.verify import check
from weft.web.figures import step_of
from weft.web.helps import what_helps
from weft.web.plot import points
from weft.web.requests import LIMITS, PageRequest, read_costs, read_request
from weft.web.view import view

Answer: TypeAlias = dict[str, object]

MOST_TIMELINES = 6
MOST_PLOTTED = 8_192  # actions of the request whose plot is made, or that settles


def catalogue() -> Answer:
    """What a reader may choose."""
    return {
        "schedules": [_described(schedule) for schedule in REGISTRY],
        "models": [{"name": name, "summary": model.source} for name, model in MODELS.items()],
        "devices": [{"name": name, "summary": device.source} for name, device in DEVICES.items()],
        "reliefs": [relief.value for relief in Relief],
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
        step = step_of(timeline, request.shape.microbatches, _settled(request))
        return {"timeline": view(timeline, request.title, step)}
    except WeftError as error:
        return {"refused": f"{request.title}: {error}"}


def _settled(request: PageRequest) -> Steady | None:
    """What an asynchronous run settles into, where finding out keeps nobody waiting."""
    if 2 * request.shape.stages * request.shape.microbatches > MOST_PLOTTED:
        return None
    return request.settled()


def _refused(request: PageRequest, reason: str, nearest: object) -> Answer:
    fields = ("devices", "microbatches", "stages_per_device", "variant")
    return {
        "refused": f"{request.title} {reason}.",
        "nearest": {name: getattr(nearest, name) for name in fields},
    }


def plot(asked: Mapping[str, object]) -> Answer:
    """Time and memory of a schedule and its variants; a page asks for one after the other."""
    request = read_request(asked.get("request"))
    actions = 2 * request.shape.stages * request.shape.microbatches
    if actions > MOST_PLOTTED:
        raise InputError(f"the plot is made for shapes of up to {MOST_PLOTTED:,} actions")
    return {"points": points(request)}


def helped(asked: Mapping[str, object]) -> Answer:
    """What would shorten the step of a request."""
    return {"helps": what_helps(read_request(asked.get("request")).timeline())}


def opened(asked: Mapping[str, object]) -> Answer:
    """The timeline of a file: one that was written down, or a program's, proved and timed.

    A run is compared by as many microbatches as the page's own steps have.
    """
    name, text = asked.get("name"), asked.get("text")
    if not isinstance(name, str) or not isinstance(text, str) or not text.strip():
        raise InputError("a file has a name and a text")
    found, settled = _read(text, name[:80]), None
    if isinstance(found, Program):
        found, settled = _timed(found, read_costs(asked.get("costs", {})))
    else:
        check(LIMITS.unfolded(found.program))  # what cannot have run has no critical path
    own = Step.of(found).microbatches
    count = Whole(most=max(own, LIMITS.microbatches))
    microbatches = read(count, asked.get("microbatches", own), "microbatches")
    step = step_of(found, microbatches, settled)
    return {"timelines": [view(found, step=step) | {"helps": what_helps(found)}]}


def _read(text: str, source: str) -> Program | Timeline:
    start = text.lstrip()[0]
    if start == "{":
        document = from_json(text, source)
        if not isinstance(document, Program | Timeline):
            raise InputError(f"{source}: a program or a timeline can be shown")
        return document
    if start in "0123456789(,":
        return from_torch_csv(text, source)
    return from_text(text, source)


def _timed(program: Program, costs: Costs) -> tuple[Timeline, Steady | None]:
    """Its timeline, and where it repeats what it settles into."""
    whole = LIMITS.unfolded(program)
    check(whole)
    is_small = len(program) <= MOST_PLOTTED
    settled = steady(program, costs.of(program)) if program.period and is_small else None
    return simulate(whole, costs.of(whole)), settled


ANSWERS: dict[str, Callable[[Mapping[str, object]], Answer]] = {
    "/timelines": timelines,
    "/plot": plot,
    "/helps": helped,
    "/open": opened,
}

"""Synthesised orders: the line of the frontier, a point for each of some budgets of memory.

A budget holds for every device: what its weights, gradients and optimizer state leave of it is the
cap on what forwards keep there. The faster of a loop and of a V is the point.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from weft.cost import Cost
from weft.draw.caption import percent
from weft.draw.units import memory_unit
from weft.errors import InputError, WeftError
from weft.ir.program import Program
from weft.notation import to_json
from weft.plan.synthesis import Effort, Problem, Synthesis, synthesize
from weft.simulate import Step
from weft.web.plot import point
from weft.web.requests import PageRequest, step_timeline
from weft.web.shortage import state_of_devices

PLACEMENTS = {"1f1b": 1, "zbv": 2}  # schedules that have a loop and a V, and stages on a device
LEVELS = (1.5, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25)  # of as many microbatches as devices
MOST = 4_000  # actions of a loop: beyond, a point takes minutes
FEW = 400  # actions of a V whose order is proved while somebody waits
QUICK = Effort(exact=1.0, moves=100)
UNPROVED = replace(QUICK, exact=0.0)


class Setting(NamedTuple):
    """A placement with its costs: bytes of each device that are there throughout, and those that
    one microbatch keeps."""

    program: Program
    cost: Cost
    state: tuple[float, ...]
    held: tuple[float, ...]


def synthesised(request: PageRequest, index: int, given: object) -> dict[str, object]:
    """The point of one budget, the loosest first, and how many there are."""
    actions = 3 * request.shape.devices * request.shape.microbatches
    if actions > MOST:
        raise InputError(
            f"{actions:,} actions; the page synthesises up to {MOST:,}, `weft synthesize` more"
        )
    settings = [*_settings(request)]
    if not settings:
        raise InputError("the model has too few layers for this many devices")
    budgets = _budgets(settings[0], request.shape.microbatches)
    if not 0 <= index < len(budgets):
        raise InputError(f"there are {len(budgets)} budgets, from 0")
    found = [*_solved(settings, budgets[index])]
    best = min(found, key=lambda one: one.makespan, default=None)
    points = [] if best is None else [_point(request, best, budgets[index], given)]
    return {"count": len(budgets), "points": points}


def _settings(request: PageRequest) -> Iterator[Setting]:
    for name, stages in PLACEMENTS.items():
        sizes = replace(request.sizes, stages_per_device=stages, variant="", updates=None)
        own = replace(request.relieved(""), name=name, sizes=sizes, has_streams=False)
        try:
            if own.schedule.accepts(own.shape) is None:
                timeline = own.timeline()
                yield _setting(own.program, own.costs.of(own.program), state_of_devices(timeline))
        except WeftError:
            continue


def _setting(program: Program, cost: Cost, state: tuple[float, ...]) -> Setting:
    saved = cost.memory.saved
    held = tuple(sum(saved[stage] for _, stage in stages) for stages in program.placement.held)
    return Setting(program, cost, state, held)


def _budgets(setting: Setting, microbatches: int) -> list[float]:
    """The most that a device holds with some microbatches in flight, the loosest first."""
    devices = setting.program.devices
    counts = {min(microbatches, max(1, round(level * devices))) for level in LEVELS}
    fullest = [
        max(state + count * held for state, held in zip(setting.state, setting.held, strict=True))
        for count in sorted(counts, reverse=True)
    ]
    capacity = setting.cost.memory.capacity
    fitting = [budget for budget in fullest if budget <= capacity]
    if not fitting:
        raise InputError("no order fits into the memory of a device without relief")
    return fitting


def _solved(settings: list[Setting], budget: float) -> Iterator[Synthesis]:
    for program, cost, state, _ in settings:
        caps = tuple(budget - own for own in state)
        is_quick = program.stages == program.devices or 3 * len(program) <= 2 * FEW
        try:
            problem = Problem.from_cost(cost, program.placement, program.microbatches, caps)
            yield synthesize(problem, QUICK if is_quick else UNPROVED)
        except WeftError:  # less than one microbatch keeps
            continue


def _point(
    request: PageRequest, best: Synthesis, budget: float, given: object
) -> dict[str, object]:
    timeline = step_timeline(best.program, request.costs, given)
    name = f"synthesised, {memory_unit(timeline).amount(budget)}"
    how = (
        "proved to be the best order" if best.is_optimal else f"{percent(best.gap)} above its bound"
    )
    stages = best.program.stages // best.program.devices
    return {
        **point(timeline, Step.of(timeline)),
        "name": name,
        "kind": "synthesised",
        "words": f"{how}, {stages} stage{'s' if stages > 1 else ''} on a device",
        "text": to_json(best.program.renamed(name)),
    }

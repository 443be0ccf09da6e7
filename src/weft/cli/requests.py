"""Requests: what the options ask for, as programs, costs and proved timelines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from weft.cli.machines import Speed, derivation_of, speed
from weft.cli.options import Machine, Prices, Sizes
from weft.cost import Cost, Derivation, Share, sizes_of_parts
from weft.errors import InputError, UnknownSchedule
from weft.ir.graph import Graph
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.lower import overlapping
from weft.notation import read_cost, read_graph, read_program
from weft.schedules import REGISTRY, Schedule, Shape
from weft.simulate import Steady, settled_of, simulate, steady
from weft.timeline import Timeline
from weft.verify import Report, check

DEVICES = 4
UPDATES = 4
MICROBATCHES_OF_GRAPH = 8
MOST_ACTIONS = 20_000_000  # of a schedule; its proof takes some 600 bytes for each
MOST_STAGES = 65_536
MOST_NAME = 80  # characters

Pricing: TypeAlias = Cost | Share | Derivation


def program_of(name: str, sizes: Sizes) -> Program:
    """The program of a schedule at the sizes asked for, or of a file."""
    if is_file(name):
        refuse_sizes(name, sizes)
        program = read_program(name)
        return program.renamed(printable(program.name[:MOST_NAME]))
    schedule = schedule_named(name)
    return schedule.program(shape_of(schedule, sizes))


def schedule_named(name: str) -> Schedule:
    """The schedule of a name that is no file's."""
    try:
        return REGISTRY[name]
    except UnknownSchedule as error:
        raise UnknownSchedule(f"{error} There is no file of that name either.") from None


def shape_of(schedule: Schedule, sizes: Sizes) -> Shape:
    """The shape asked for, with the schedule's own defaults."""
    graph, placement = _graph_of(sizes.graph) if sizes.graph else (None, None)
    devices = _devices(sizes.devices, graph, placement)
    default = MICROBATCHES_OF_GRAPH if graph else 2 * devices
    shape = Shape(
        devices=devices,
        microbatches=sizes.microbatches or default,
        stages_per_device=sizes.stages_per_device or schedule.stages_for(),
        pipes=sizes.pipes,
        updates=sizes.updates or UPDATES,
        round=sizes.round or 0,
        variant=sizes.variant,
        graph=graph,
        placement=placement,
    )
    if sizes.updates is not None and not schedule.is_asynchronous:
        raise InputError(f"{schedule.name} flushes after every step; leave out --updates")
    _check_size(shape, steps=shape.updates if schedule.is_asynchronous else 1)
    return shape


def pricing_of(prices: Prices) -> Pricing:
    """The costs asked for: of a model on a device, from a file, or of a device's share."""
    given = {item.name: getattr(prices, item.name) for item in fields(prices)}
    given = {name: value for name, value in given.items() if value is not None}
    if given.pop("machine") != Machine():
        _refuse("a model on a device has all costs", given)
        return derivation_of(prices.machine)
    if "cost" in given:
        _refuse("--cost gives all costs", (name for name in given if name != "cost"))
        return read_cost(given["cost"])
    if "backward" in given:
        parts = (name for name in given if name in ("input_grad", "weight_grad"))
        _refuse("--backward is both gradients together", parts)
        half = given.pop("backward") / 2
        given |= {"input_grad": half, "weight_grad": half}
    return Share(**given)


def cost_of(program: Program, pricing: Pricing) -> Cost:
    """What the program costs."""
    if not isinstance(pricing, Cost):
        return pricing.cost(program)
    pricing.check_fits(program)
    if pricing.sizes or pricing.measurement:  # what was measured is a microbatch as it runs
        return pricing
    return replace(pricing, sizes=sizes_of_parts(program))


def proved(program: Program, cost: Cost) -> tuple[Timeline, Report]:
    """The timeline of a program that passed every rule, but for memory; else ProgramError.

    What does not fit can still be timed and drawn, which may show why.
    """
    report = check(program)
    return simulate(overlapping(unfolded(program), cost), cost), report


def speed_of(timeline: Timeline, pricing: Pricing, steady: Steady | None = None) -> Speed | None:
    """How fast a model goes through a timeline, where there is a model."""
    return speed(pricing, timeline, steady) if isinstance(pricing, Derivation) else None


def unfolded(program: Program) -> Program:
    """The program in full, however often its body repeats."""
    if program.period is None:
        return program
    if program.total > MOST_ACTIONS:
        raise InputError(
            f"{program.name} makes {program.total:,} actions; Weft times {MOST_ACTIONS:,}"
        )
    return program.unrolled()


def steady_of(name: str, sizes: Sizes, pricing: Pricing) -> Steady | None:
    """What a schedule that does not flush, or a program that repeats, settles into."""
    if not is_file(name):
        schedule = REGISTRY[name]
        shape = shape_of(schedule, sizes)
        return settled_of(schedule, shape, partial(cost_of, pricing=pricing))
    program = read_program(name)
    return steady(program, cost_of(program, pricing)) if program.period else None


def is_file(name: str) -> bool:
    """Whether a name is that of a file, not of a schedule."""
    if any(name == schedule.name for schedule in REGISTRY):
        return False
    path = Path(name)
    return path.is_file() or len(path.parts) > 1 or bool(path.suffix)


def printable(name: str) -> str:
    """A name out of a file, or of one, without what a terminal would obey."""
    return "".join(sign if sign.isprintable() else "?" for sign in name)


def refuse_sizes(name: str, sizes: Sizes) -> None:
    """Refuse options of a shape beside a program that has one."""
    usual = Sizes()
    given = (f.name for f in fields(sizes) if getattr(sizes, f.name) != getattr(usual, f.name))
    _refuse(f"{name} is a program with a shape of its own", given)


def _devices(given: int | None, graph: Graph | None, placement: Placement | None) -> int:
    if graph is None:
        return given or DEVICES
    devices = placement.devices if placement else len(graph)
    if given is not None and given != devices:
        raise InputError(f"--graph needs {devices} devices, not {given}; leave out --devices")
    return devices


def _graph_of(text: str) -> tuple[Graph, Placement | None]:
    if text == "inception":
        return Graph.inception(), None
    if towers := re.fullmatch(r"two-tower:([0-9]{1,9})", text):
        _check_stages(2 * int(towers[1]) + 1)
        return Graph.two_tower(int(towers[1])), None
    if not Path(text).exists() and not Path(text).suffix:
        raise InputError(f"--graph {text}: neither two-tower:T nor inception nor a JSON file")
    graph, placement = read_graph(text)
    return graph, None if placement == Placement.straight(len(graph)) else placement


def _check_size(shape: Shape, *, steps: int) -> None:
    """Refuse what would take more memory than most machines have, before it is taken."""
    _check_stages(shape.stages)
    actions = 2 * shape.stages * max(shape.microbatches, shape.pipes) * steps
    if actions > MOST_ACTIONS:
        raise InputError(
            f"{shape.stages:,} stages and {shape.microbatches:,} microbatches make {actions:,}"
            f" actions or more; Weft takes {MOST_ACTIONS:,}. Ask for fewer of either."
        )


def _check_stages(stages: int) -> None:
    if stages > MOST_STAGES:
        raise InputError(f"{stages:,} stages; Weft takes {MOST_STAGES:,} at most")


def _refuse(reason: str, names: Iterable[str]) -> None:
    """Refuse options that have no place beside another."""
    flags = " and ".join(f"--{name.replace('_', '-')}" for name in names)
    if flags:
        raise InputError(f"{reason}; leave out {flags}")

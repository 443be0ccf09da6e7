"""Requests: what a live page asks for, read with suspicion, and its timeline.

    {"schedule": "1f1b", "variant": "", "devices": 4, "microbatches": 8, "stages_per_device": 1,
     "forward": 1, "input_grad": 1, "weight_grad": 1, "latency": 0, "bandwidth": 0,
     "capacity": 0, "streams": false}

A message has size 1, as have the weights of a device and what it saves of a microbatch. A
bandwidth or a capacity of 0 is none: no limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from weft.cost import Cost, Link, Share
from weft.errors import InputError
from weft.ir.program import Program
from weft.lower import experts, offload, wires
from weft.schedules import REGISTRY, Schedule, Shape
from weft.simulate import simulate
from weft.timeline import Timeline
from weft.verify import check

MOST_DEVICES = 256
MOST_MICROBATCHES = 4096
MOST_STAGES_PER_DEVICE = 32
MOST_ACTIONS = 300_000
MOST_SECONDS = 1e6
UPDATES = 4  # of a run that does not flush


@dataclass(frozen=True, slots=True)
class Prices:
    """Costs of a device's share, its link and its memory."""

    share: Share
    link: Link
    capacity: float

    def cost(self, program: Program) -> Cost:
        """What a program costs."""
        cost = self.share.cost(program)
        message = (1.0,) * len(program.graph.edges)
        return replace(
            cost,
            network=replace(cost.network, message=message, default=self.link),
            memory=replace(cost.memory, capacity=self.capacity),
        )


@dataclass(frozen=True, slots=True)
class Request:
    """A schedule at a shape, with its costs."""

    schedule: Schedule
    shape: Shape
    prices: Prices
    has_streams: bool = False

    @property
    def name(self) -> str:
        variant = self.shape.variant
        return f"{self.schedule.name} ({variant})" if variant else self.schedule.name

    def timeline(self) -> Timeline:
        """The proved program, timed; InputError or ProgramError where there is none."""
        program = _proved(self.schedule.name, self.shape)
        if self.has_streams:
            return _in_streams(program, self.prices)
        return simulate(program, self.prices.cost(program))


@lru_cache(maxsize=16)
def _proved(name: str, shape: Shape) -> Program:
    """The program of a schedule, in full; kept, since most questions change costs alone."""
    program = unfolded(REGISTRY[name].program(shape))
    check(program)
    return program


def read_request(given: object) -> Request:
    """A request out of JSON; InputError where it makes no sense or asks for too much."""
    if not isinstance(given, Mapping):
        raise InputError("a request is an object")
    schedule = REGISTRY[_text(given, "schedule")]
    shape = Shape(
        devices=_count(given, "devices", MOST_DEVICES),
        microbatches=_count(given, "microbatches", MOST_MICROBATCHES),
        stages_per_device=_count(given, "stages_per_device", MOST_STAGES_PER_DEVICE),
        variant=_text(given, "variant"),
        updates=UPDATES,
    )
    check_size(schedule, shape)
    return Request(schedule, shape, _prices(given), given.get("streams") is True)


def check_size(schedule: Schedule, shape: Shape) -> None:
    """Refuse what would keep the page waiting."""
    steps = shape.updates if schedule.is_asynchronous else 1
    actions = 2 * shape.stages * shape.microbatches * steps
    if actions > MOST_ACTIONS:
        raise InputError(
            f"{shape.devices} devices, {shape.microbatches} microbatches and"
            f" {shape.stages_per_device} stages per device make {actions:,} actions or more; the"
            f" page shows {MOST_ACTIONS:,}. `weft draw -o page.html` takes more."
        )


def unfolded(program: Program) -> Program:
    """The program in full, however often its body repeats."""
    return program.unrolled() if program.period else program


def _prices(given: Mapping[str, object]) -> Prices:
    seconds = {name: _amount(given, name, 1.0) for name in ("forward", "input_grad", "weight_grad")}
    bandwidth, capacity = _amount(given, "bandwidth", 0.0), _amount(given, "capacity", 0.0)
    return Prices(
        share=Share(**seconds),
        link=Link(latency=_amount(given, "latency", 0.0), bandwidth=bandwidth or math.inf),
        capacity=capacity or math.inf,
    )


def _in_streams(program: Program, prices: Prices) -> Timeline:
    """With every stream in use: pairs cut into parts, all saved state offloaded, and wires."""
    if bool(program.actions.joined.any()):
        program = experts(program, layers=1)
    cost = prices.cost(program)
    copies = Link(bandwidth=4 / max(1e-9, prices.share.forward + prices.share.backward))
    cost = replace(cost, network=replace(cost.network, host=copies))
    return simulate(wires(offload(simulate(program, cost))), cost)


def _text(given: Mapping[str, object], name: str) -> str:
    value = given.get(name, "")
    if not isinstance(value, str) or len(value) > 80:
        raise InputError(f"{name} is a short text")
    return value


def _count(given: Mapping[str, object], name: str, most: int) -> int:
    value = given.get(name, 1)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InputError(f"{name.replace('_', ' ')}: a whole number from 1 to {most}")
    return value


def _amount(given: Mapping[str, object], name: str, usual: float) -> float:
    value = given.get(name, usual)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MOST_SECONDS:  # type: ignore[operator]
        raise InputError(f"{name.replace('_', ' ')}: a number from 0 to {MOST_SECONDS:,.0f}")
    return float(value)  # type: ignore[arg-type]

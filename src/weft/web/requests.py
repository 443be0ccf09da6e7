"""Requests: what a live page asks for, read with suspicion, and its timeline.

    {"schedule": "1f1b", "variant": "", "devices": 4, "microbatches": 8, "stages_per_device": 1,
     "updates": 2, "relief": "--recompute all", "streams": false, "forward": 1, ...}

`prices` has all that things cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from weft.errors import InputError
from weft.explain import Relief, relieved
from weft.ir.program import Program
from weft.lower import experts, offload, recompute, wires
from weft.schedules import REGISTRY, Schedule, Shape
from weft.simulate import Steady, settling, simulate, steady
from weft.timeline import Timeline
from weft.verify import check
from weft.web.numbers import count, text
from weft.web.prices import Prices, read_prices

MOST_DEVICES = 256
MOST_MICROBATCHES = 4096
MOST_STAGES_PER_DEVICE = 32
MOST_ACTIONS = 300_000
MOST_UPDATES = 64  # of a run that does not flush


@dataclass(frozen=True, slots=True)
class Request:
    """A schedule at a shape, with its costs."""

    schedule: Schedule
    shape: Shape
    prices: Prices
    relief: Relief = Relief.NONE
    has_streams: bool = False

    @property
    def name(self) -> str:
        variant = self.shape.variant
        name = f"{self.schedule.name} ({variant})" if variant else self.schedule.name
        return f"{name} {self.relief.value}".rstrip()

    def timeline(self) -> Timeline:
        """The proved program, timed; InputError or ProgramError where there is none."""
        program = proved(self.schedule.name, self.shape)
        if self.has_streams:
            return _in_streams(program, self.prices, self.relief)
        timeline = simulate(program, self.prices.cost(program))
        if self.relief is Relief.NONE:
            return timeline
        return simulate(relieved(timeline, self.relief), timeline.cost)

    def settled(self) -> Steady | None:
        """What it settles into where it does not flush; what waits on the host delays nothing."""
        if not self.schedule.is_asynchronous:
            return None
        program = settling(self.schedule, self.shape)
        program = recompute(program) if self.relief.is_recomputing else program
        return steady(program, self.prices.cost(program))


@lru_cache(maxsize=16)
def proved(name: str, shape: Shape) -> Program:
    """The program of a schedule, in full; kept, since most questions change costs alone."""
    program = unfolded(REGISTRY[name].program(shape))
    check(program)
    return program


def read_request(given: object) -> Request:
    """A request out of JSON; InputError where it makes no sense or asks for too much."""
    if not isinstance(given, Mapping):
        raise InputError("a request is an object")
    schedule = REGISTRY[text(given, "schedule")]
    shape = Shape(
        devices=count(given, "devices", MOST_DEVICES),
        microbatches=count(given, "microbatches", MOST_MICROBATCHES),
        stages_per_device=count(
            given, "stages_per_device", MOST_STAGES_PER_DEVICE, schedule.stages_for()
        ),
        variant=text(given, "variant"),
        updates=count(given, "updates", MOST_UPDATES),
    )
    check_size(schedule, shape)
    return Request(
        schedule, shape, read_prices(given), _relief(given), given.get("streams") is True
    )


def _relief(given: Mapping[str, object]) -> Relief:
    try:
        return Relief(text(given, "relief"))
    except ValueError:
        known = ", ".join(repr(relief.value) for relief in Relief)
        raise InputError(f"relief is one of {known}") from None


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
    """The program in full, however often its body repeats; InputError where that is too much."""
    if program.total > MOST_ACTIONS:
        raise InputError(f"{program.total:,} actions; the page shows {MOST_ACTIONS:,}")
    return program.unrolled() if program.period else program


def _in_streams(program: Program, prices: Prices, relief: Relief) -> Timeline:
    """With every stream in use: pairs cut into parts, all saved state offloaded, and wires."""
    has_pairs = bool(program.actions.joined.any())
    if relief.is_recomputing:
        program = recompute(program)
    if has_pairs:
        program = experts(program, layers=1)
    cost = prices.cost(program)
    return simulate(wires(offload(simulate(program, cost))), cost)

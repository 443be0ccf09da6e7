"""Requests: what a live page asks for, read with suspicion, within what keeps nobody waiting.

    {"schedule": "1f1b", "variant": "", "devices": 4, "microbatches": 8, "stages_per_device": 1,
     "updates": 2, "relief": "--recompute all", "streams": false,
     "forward": 1, "input_grad": 1, "weight_grad": 1,    a device's share of the model, in units
     "model": "gpt-6.2b", "device": "a100",              or a model on devices, in seconds
     "microbatch_size": 1, "expert_parallel": 1,         and bytes
     "latency": 0, "bandwidth": 0, "capacity": 0,        a link, and the memory of a device
     "lengths": [1, 1, 2, 1]}                            of the model's equal pieces, in order

In units a message has size 1, as have the weights of a device and what it saves of a microbatch.
A link or a capacity of 0 is the usual one: that of the device, in units no limit. No file is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from weft.cost import Share, device_named, model_named
from weft.errors import InputError
from weft.explain import Relief
from weft.ir.program import Program
from weft.request import Costs, Limits, Machine, Overrides, Passes, Prices, Request, Sizes
from weft.request.values import Text, picked, read
from weft.schedules import REGISTRY, Shape
from weft.timeline import Timeline
from weft.verify import Report, check

LIMITS = Limits(
    actions=300_000,
    devices=256,
    microbatches=4096,
    stages_per_device=32,
    updates=64,
    remedy="the page shows {most:,}. `weft draw -o page.html` takes more.",
)
NAME = Text(most=80)
SIZES = ("devices", "microbatches", "stages_per_device", "variant")


@dataclass(frozen=True)
class PageRequest(Request):
    """A request whose program is kept, since most questions change costs alone."""

    has_streams: bool = False

    def timeline(self) -> Timeline:
        """The proved program, timed; InputError or ProgramError where there is none."""
        return (self.in_streams() if self.has_streams else self.timed())[0]

    def proved(self) -> tuple[Program, Report]:
        return proved(self.name, self.shape)

    def _made(self) -> Program:
        return self.proved()[0]


@lru_cache(maxsize=16)
def proved(name: str, shape: Shape) -> tuple[Program, Report]:
    """The program of a schedule, in full, and its proof."""
    program = LIMITS.unfolded(REGISTRY[name].program(shape))
    return program, check(program)


def read_request(given: object) -> PageRequest:
    """A request out of JSON; InputError where it makes no sense or asks for too much."""
    if not isinstance(given, Mapping):
        raise InputError("a request is an object")
    schedule = REGISTRY[_name(given, "schedule")]
    sizes = picked(Sizes, given, *SIZES, *(("updates",) if schedule.is_asynchronous else ()))
    return PageRequest(
        schedule.name,
        sizes,
        passes=Passes.of(_relief(given)),
        costs=read_costs(given),
        limits=LIMITS,
        has_streams=given.get("streams") is True,
    )


def read_costs(given: object) -> Costs:
    """Costs out of JSON; InputError where they make no sense."""
    if not isinstance(given, Mapping):
        raise InputError("costs are an object")
    asked = {name: value for name, value in given.items() if value != 0}
    names = ("latency", "bandwidth", "capacity", "lengths")
    overrides = picked(Overrides, asked, *names)
    if _name(given, "model") or _name(given, "device"):
        return replace(_machine(given), overrides=overrides)
    prices = picked(Prices, given, "forward", "input_grad", "weight_grad")
    base = Costs.asked(prices, Machine()).base
    assert isinstance(base, Share)
    return Costs(replace(base, message=1.0), overrides).with_copies()


def _machine(given: Mapping[str, object]) -> Costs:
    """A model and a device by their names alone."""
    for name, known in (("model", model_named), ("device", device_named)):
        known(_name(given, name))
    names = ("model", "device", "microbatch_size", "expert_parallel")
    return Costs.asked(Prices(), picked(Machine, given, *names))


def _relief(given: Mapping[str, object]) -> Relief:
    try:
        return Relief(_name(given, "relief"))
    except ValueError:
        known = ", ".join(repr(relief.value) for relief in Relief)
        raise InputError(f"relief is one of {known}") from None


def _name(given: Mapping[str, object], name: str) -> str:
    """A short text; empty where there is none."""
    found: str = read(NAME, given.get(name, ""), name)
    return found

"""Requests: what a live page asks for, read with suspicion, within what keeps nobody waiting.

    {"schedule": "1f1b", "variant": "", "devices": 4, "microbatches": 8, "stages_per_device": 1,
     "updates": 2, "relief": "--recompute all", "streams": false,
     "forward": 1, "input_grad": 1, "weight_grad": 1,    a device's share of the model, in units
     "model": "gpt-6.2b", "device": "a100", ...          or a model on devices: see `machines`
     "ends_with_update": false,                          whether sums and updates are of the step
     "latency": 0, "bandwidth": 0, "capacity": 0,        a link, and the memory of a device
     "lengths": [1, 1, 2, 1]}                            of the model's equal pieces, in order

In units a message has size 1, as have the weights of a device and what it saves of a microbatch.
A link or a capacity of 0 is the usual one: that of the device, in units no limit. No file is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from weft.cost import Share
from weft.errors import InputError
from weft.ir.program import Program
from weft.request import DEVICES, Costs, Limits, Machine, Overrides, Prices, Request, Sizes
from weft.request.values import Text, picked, read
from weft.schedules import REGISTRY, Shape
from weft.timeline import Timeline
from weft.verify import Report, check
from weft.web.machines import read_derivation
from weft.web.reliefs import RELIEF, read_relief

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
    ends_with_update: bool = False

    @property
    def relief(self) -> str:
        """What relieves memory, as the command line spells it."""
        return str(self.passes)

    def relieved(self, relief: str) -> PageRequest:
        """The same with this relief and no other."""
        return replace(self, passes=read_relief(relief))

    def timeline(self) -> Timeline:
        """The proved program, timed; InputError or ProgramError where there is none."""
        whole = self
        if self.ends_with_update and not self.schedule.is_asynchronous:
            whole = replace(self, passes=replace(self.passes, steps=1))
        return (whole.in_streams() if self.has_streams else whole.timed())[0]

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
    costs = read_costs(given, sizes.devices or DEVICES)
    request = PageRequest(
        schedule.name,
        sizes,
        costs=costs,
        limits=LIMITS,
        has_streams=given.get("streams") is True,
        ends_with_update=_ends_with_update(given, costs),
    )
    return request.relieved(read(RELIEF, given.get("relief", ""), "relief"))


def read_costs(given: object, devices: int | None = None) -> Costs:
    """Costs out of JSON, for a pipeline of this many devices where that is known.

    InputError where they make no sense.
    """
    if not isinstance(given, Mapping):
        raise InputError("costs are an object")
    asked = {name: value for name, value in given.items() if value != 0}
    overrides = picked(Overrides, asked, "latency", "bandwidth", "capacity", "lengths")
    if given.get("model", "") != "" or given.get("device", "") != "":
        return Costs(read_derivation(given, devices), overrides)
    prices = picked(Prices, given, "forward", "input_grad", "weight_grad")
    base = Costs.asked(prices, Machine()).base
    assert isinstance(base, Share)
    return Costs(replace(base, message=1.0), overrides).with_copies()


def step_timeline(program: Program, costs: Costs, given: object) -> Timeline:
    """A program in full, proved, and timed as the schedules of the same question are."""
    request = Request(program.name, costs=costs, given=program)
    return (request.stepped() if _ends_with_update(given, costs) else request.timed())[0]


def _ends_with_update(given: object, costs: Costs) -> bool:
    """Asked for, or because gradients are summed over copies of the pipeline within the step."""
    if isinstance(given, Mapping) and given.get("ends_with_update") is True:
        return True
    return costs.layout.replicas > 1


def _name(given: Mapping[str, object], name: str) -> str:
    """A short text; empty where there is none."""
    found: str = read(NAME, given.get(name, ""), name)
    return found

"""What is compared: the methods, the model whose layers take a known time, and ideal periods.

The period of a method is its seconds per update: of a whole step where it flushes, in the steady
state where it does not. Knows programs and costs; runs nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from weft.cost import Cost, Link, Network, Share
from weft.errors import InputError
from weft.ir.program import Program
from weft.schedules import REGISTRY, Shape
from weft.simulate import simulate, steady

MICROBATCHES = 2  # of an update of one pipeline, for each of its ranks
SIZES = (1, 2, 4, 8, 16, 32, 64)  # samples of a microbatch
BACKWARD = 2  # forwards that a backward takes
REPEATS = 16  # updates behind which a run is as good as settled


class Method(NamedTuple):
    """A schedule as it is compared with others."""

    schedule: str
    variant: str = ""

    @property
    def name(self) -> str:
        return " ".join(filter(None, self))

    @property
    def is_asynchronous(self) -> bool:
        return REGISTRY[self.schedule].is_asynchronous

    @property
    def stages_per_device(self) -> int:
        return 2 if self.schedule in ("interleaved-1f1b", "wpipe") else 1

    def program(self, devices: int, microbatches: int) -> Program:
        """Rounds of WPipe have a microbatch for each device, as published; eager ones all."""
        size = microbatches if self.variant else devices
        return REGISTRY[self.schedule].program(
            Shape(
                devices=devices,
                microbatches=microbatches,
                stages_per_device=self.stages_per_device,
                variant=self.variant,
                round=size if self.schedule == "wpipe" else 0,
                updates=2 * devices + 2,
            )
        )


METHODS = (
    Method("gpipe"),
    Method("1f1b"),
    Method("interleaved-1f1b"),
    Method("pipedream-2bw"),
    Method("pipedream-2bw", "eager"),
    Method("wpipe"),
    Method("wpipe", "eager"),
)
TWO_BW, WPIPE = METHODS[3], METHODS[5]
BY_NAME = {method.name: method for method in METHODS}


class Model(NamedTuple):
    """Equal layers, whose forward takes `fixed + each · size` seconds for `size` samples.

    Bytes are those of a layer of BERT-base in single precision, with sequences of 128 tokens.
    """

    layers: int
    fixed: float = 200e-6
    each: float = 3e-6
    weights: int = 4 * 7_087_872  # of a layer
    boundary: int = 4 * 128 * 768  # of a sample between layers

    def forward(self, size: int) -> float:
        """Seconds of the whole model."""
        return self.layers * (self.fixed + self.each * size)


class Links(NamedTuple):
    """How fast devices exchange bytes: neighbours of a pipeline, and replicas of a stage."""

    latency: float = 0.0
    bandwidth: float = math.inf

    def reduction(self, size: float, replicas: int) -> float:
        """Seconds of a ring all-reduce of so many bytes."""
        hops = 2 * (replicas - 1)
        return hops * (size / replicas / self.bandwidth + self.latency)


def cost(program: Program, model: Model, size: int, links: Links | None = None) -> Cost:
    """Equal shares of the model on all devices, with microbatches of this size."""
    links = links or Links()
    forward = model.forward(size) / program.devices
    share = Share(forward=forward, input_grad=forward, weight_grad=(BACKWARD - 1) * forward)
    message = (float(model.boundary * size),) * len(program.graph.edges)
    return replace(share.cost(program), network=Network(message, Link(*links)))


def period(program: Program, cost: Cost) -> float:
    """Seconds per update."""
    if program.period is None:
        return simulate(program, cost).makespan
    try:
        return steady(program, cost).period
    except InputError:  # the cycle is longer than it looks
        few, many = (
            simulate(program.unrolled(count), cost).makespan for count in (REPEATS, 2 * REPEATS)
        )
        return (many - few) / REPEATS

"""Prices: the costs that a reader of the live page chooses.

    {"forward": 1, "input_grad": 1, "weight_grad": 1}    a device's share of the model, in units
    {"model": "gpt-6.2b", "device": "a100",              or a model on devices, in seconds
     "microbatch_size": 1, "expert_parallel": 1}         and bytes
    {"latency": 0, "bandwidth": 0, "capacity": 0}        a link, and the memory of a device
    {"lengths": [1, 1, 2, 1]}                            of the model's equal parts, in order

In units a message has size 1, as have the weights of a device and what it saves of a microbatch.
A link or a capacity of 0 is the usual one: that of the device, in units no limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from weft.cost import (
    Cost,
    Derivation,
    Layout,
    Link,
    Memory,
    Network,
    Share,
    device_named,
    model_named,
    stretched,
)
from weft.errors import InputError
from weft.ir.program import Program
from weft.web.numbers import amount, amounts, count, text

MOST_PARTS = 256
MOST_SEQUENCES = 1024
MOST_SHARING = 512  # devices of a stage
SHARES = ("forward", "input_grad", "weight_grad")


@dataclass(frozen=True, slots=True)
class Prices:
    """What things cost, whatever the program; what is 0 is as usual."""

    base: Share | Derivation
    latency: float = 0.0
    bandwidth: float = 0.0
    capacity: float = 0.0
    lengths: tuple[float, ...] = ()

    def cost(self, program: Program) -> Cost:
        """What a program costs."""
        cost = self.base.cost(program)
        if isinstance(self.base, Share):
            cost = replace(cost, network=_unit_network(program, self.base))
        if self.lengths:
            cost = stretched(cost, tuple(self._length(program, s) for s in range(program.stages)))
        return replace(cost, network=self._network(cost.network), memory=self._memory(cost.memory))

    def _length(self, program: Program, stage: int) -> float:
        """That of the part which a stage lies in; the model has a part for each device."""
        part = stage * program.devices // program.stages
        return self.lengths[part] if part < len(self.lengths) else 1.0

    def _network(self, network: Network) -> Network:
        between = {ends: self._link(link) for ends, link in network.between.items()}
        return replace(network, default=self._link(network.default), between=between)

    def _link(self, usual: Link) -> Link:
        return Link(self.latency or usual.latency, self.bandwidth or usual.bandwidth)

    def _memory(self, memory: Memory) -> Memory:
        return replace(memory, capacity=self.capacity or memory.capacity)


def _unit_network(program: Program, share: Share) -> Network:
    """Messages of size 1; a microbatch is copied to the host in a quarter of its computation."""
    copies = Link(bandwidth=4 / max(1e-9, share.forward + share.backward))
    return Network(message=(1.0,) * len(program.graph.edges), host=copies)


def read_prices(given: object) -> Prices:
    """Prices out of JSON; InputError where they make no sense."""
    if not isinstance(given, Mapping):
        raise InputError("costs are an object")
    return Prices(
        base=_derivation(given) or Share(**{name: amount(given, name, 1.0) for name in SHARES}),
        latency=amount(given, "latency", 0.0),
        bandwidth=amount(given, "bandwidth", 0.0),
        capacity=amount(given, "capacity", 0.0),
        lengths=amounts(given, "lengths", MOST_PARTS),
    )


def _derivation(given: Mapping[str, object]) -> Derivation | None:
    """A model and a device by their names: no file is read."""
    if not text(given, "model") and not text(given, "device"):
        return None
    model = model_named(text(given, "model"))
    if "microbatch_size" in given:
        model = replace(model, microbatch=count(given, "microbatch_size", MOST_SEQUENCES))
    return Derivation(
        model=model,
        device=device_named(text(given, "device")),
        layout=Layout(experts=count(given, "expert_parallel", MOST_SHARING)),
    )

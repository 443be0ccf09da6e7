"""The cost of a program, and the even shares that unit costs are made of.

Knows stages, edges and links; knows no schedule and no order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.ir.actions import Actions
from weft.ir.earliest import Seconds
from weft.ir.graph import Backward, Graph
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.ir.values import Value

PerStage = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of each stage for one microbatch of ordinary size; a whole backward is I + W."""

    forward: PerStage
    input_grad: PerStage
    weight_grad: PerStage
    recompute: PerStage
    update: PerStage
    reduce: PerStage


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of each stage; `saved` and `inputs` are per microbatch in flight."""

    weights: PerStage
    gradients: PerStage
    optimizer: PerStage
    saved: PerStage  # what F keeps for the backward
    inputs: PerStage  # what F keeps where the stage is recomputed
    capacity: float = math.inf  # of one device
    host_capacity: float = math.inf


@dataclass(frozen=True, slots=True)
class Link:
    """A value of n bytes arrives `latency + n / bandwidth` seconds after it is sent."""

    latency: float = 0.0
    bandwidth: float = math.inf

    def seconds(self, size: float) -> float:
        """How long sending keeps the link busy."""
        return size / self.bandwidth


@dataclass(frozen=True, slots=True)
class Network:
    """Links between devices and to the host; `between` overrides `default` for a device pair."""

    message: tuple[float, ...]  # bytes that cross each edge of the graph, either way
    default: Link = Link()
    between: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    host: Link = Link()

    def link(self, source: int, destination: int) -> Link:
        return self.between.get((source, destination), self.default)


@dataclass(frozen=True, slots=True)
class Cost:
    """Times, memory and network of one model on one set of devices.

    pairs       seconds of an overlapped pair relative to running both, by kinds ("BF")
    sizes       relative size of each microbatch of a step; empty where all are equal
    is_barrier  whether a step ends for all devices together (WALL) or steps overlap (SPAN)
    """

    times: Times
    memory: Memory
    network: Network
    pairs: Mapping[str, float] = field(default_factory=dict)
    sizes: tuple[float, ...] = ()
    is_barrier: bool = True

    def __post_init__(self) -> None:
        _check(self)

    @property
    def stages(self) -> int:
        return len(self.times.forward)

    def check_fits(self, program: Program) -> None:
        """Refuse a program of other stages, edges or microbatches than this cost describes."""
        if self.stages != program.stages:
            raise InputError(
                f"the cost describes {self.stages} stages, {program.name} has {program.stages}"
            )
        if len(self.network.message) != len(program.graph.edges):
            raise InputError(
                f"the cost describes {len(self.network.message)} edges,"
                f" {program.name} has {len(program.graph.edges)}"
            )
        if self.sizes and len(self.sizes) != program.microbatches:
            raise InputError(
                f"the cost sizes {len(self.sizes)} microbatches,"
                f" {program.name} has {program.microbatches} in a step"
            )

    def durations(self, program: Program) -> Seconds:
        """Seconds of every slot of the program."""
        self.check_fits(program)
        actions = program.actions
        seconds = self._seconds_by_stage()[actions.kind, actions.stage]
        seconds = seconds * self.covered(actions)
        self._add_copies(program, seconds)
        if not actions.joined.any():
            return seconds
        together = np.zeros(len(program.first_of_slot))
        np.add.at(together, program.slot_of, seconds)
        for slot in np.unique(program.slot_of[actions.joined == 1]):
            together[slot] *= self._overlap(program, int(slot))
        return together

    def delays(self, program: Program) -> Seconds:
        """For every dependency of the program, how long its value travels."""
        dependencies = program.dependencies
        delays = np.zeros(len(dependencies))
        source = program.device_of[dependencies.producer]
        destination = program.device_of[dependencies.consumer]
        for value, is_sent_apart in (
            (Value.ACTIVATION, False),
            (Value.GRADIENT, False),
            (Value.MESSAGE, True),
        ):
            rows = np.flatnonzero((dependencies.value == value) & (source != destination))
            if self._is_plain:
                delays[rows] = self.network.default.latency
                continue
            sizes = np.array(self.network.message)[dependencies.edge[rows]]
            sizes = sizes * self.covered(program.actions.take(dependencies.consumer[rows]))
            for row, size in zip(rows.tolist(), sizes.tolist(), strict=True):
                link = self.network.link(int(source[row]), int(destination[row]))
                delays[row] = link.latency + (0.0 if is_sent_apart else link.seconds(size))
        return delays

    def covered(self, actions: Actions) -> NDArray[np.float64]:
        """How many ordinary microbatches' work each action covers."""
        if not self.sizes:
            return actions.span.astype(np.float64)
        step = len(self.sizes)
        sums = np.concatenate([[0.0], np.cumsum(self.sizes)])
        first, last = actions.microbatch, actions.microbatch + actions.span
        whole = (last // step - first // step) * sums[-1]
        covered = np.asarray(whole + sums[last % step] - sums[first % step], np.float64)
        return np.where(actions.microbatch >= 0, covered, 1.0)

    @property
    def _is_plain(self) -> bool:
        """Whether every value takes the same time, whatever its size and way."""
        return not self.network.between and math.isinf(self.network.default.bandwidth)

    def _seconds_by_stage(self) -> NDArray[np.float64]:
        times = self.times
        table = np.zeros((len(Kind), self.stages))
        table[Kind.F] = times.forward
        table[Kind.B] = np.add(times.input_grad, times.weight_grad)
        table[Kind.I] = times.input_grad
        table[Kind.W] = times.weight_grad
        table[Kind.R] = times.recompute
        table[Kind.UPDATE] = times.update
        table[Kind.REDUCE] = times.reduce
        table[Kind.OFFLOAD] = [self.network.host.seconds(size) for size in self.memory.saved]
        table[Kind.ONLOAD] = table[Kind.OFFLOAD]
        return table

    def _add_copies(self, program: Program, seconds: Seconds) -> None:
        """A send keeps its link busy for its bytes."""
        actions = program.actions
        is_send = np.isin(actions.kind, (Kind.SEND_ACTIVATION, Kind.SEND_GRADIENT))
        for row in np.flatnonzero(is_send).tolist():
            channel = program.lanes[program.lane_of[row]].channel
            if channel is not None:
                link = self.network.link(channel.source, channel.destination)
                size = self.network.message[int(actions.edge[row])]
                seconds[row] = link.seconds(size * float(self.covered(actions.take([row]))[0]))

    def _overlap(self, program: Program, slot: int) -> float:
        first = int(program.first_of_slot[slot])
        one, other = (Kind(int(kind)).name for kind in program.actions.kind[first : first + 2])
        return self.pairs.get(one + other, self.pairs.get(other + one, 1.0))


@dataclass(frozen=True, slots=True)
class Share:
    """Costs of one device's share of the model, spread evenly over its stages."""

    forward: float = 1.0
    input_grad: float = 1.0
    weight_grad: float = 1.0
    pair: float | None = None
    lag: float = 0.0

    @property
    def backward(self) -> float:
        return self.input_grad + self.weight_grad

    def cost(self, program: Program) -> Cost:
        """The cost of a program whose devices have equal shares: unit costs by default."""
        graph = program.graph
        share = program.devices / len(graph)
        weights = [share * stage.cost for stage in graph.stages]
        learns = [stage.backward is Backward.FULL for stage in graph.stages]
        forward = _scaled(self.forward, weights)
        weight_grad = tuple(
            self.weight_grad * w if is_full else 0.0
            for w, is_full in zip(weights, learns, strict=True)
        )
        return Cost(
            times=Times(
                forward=forward,
                input_grad=_scaled(self.input_grad, weights),
                weight_grad=weight_grad,
                recompute=forward,
                update=_zeros(graph),
                reduce=_zeros(graph),
            ),
            memory=Memory(
                weights=(share,) * len(graph),
                gradients=_zeros(graph),
                optimizer=_zeros(graph),
                saved=(share,) * len(graph),
                inputs=_zeros(graph),
            ),
            network=Network(message=(0.0,) * len(graph.edges), default=Link(latency=self.lag)),
            pairs=self._pairs(),
        )

    def _pairs(self) -> dict[str, float]:
        if self.pair is None:
            return {}
        both = self.forward + self.backward
        if both <= 0:
            raise InputError("a pair costs time only where forward and backward do")
        return {"BF": self.pair / both}


def _scaled(value: float, weights: list[float]) -> PerStage:
    return tuple(value * weight for weight in weights)


def _zeros(graph: Graph) -> PerStage:
    return (0.0,) * len(graph)


def _check(cost: Cost) -> None:
    """Seconds and bytes are numbers, not negative, as many as there are stages."""
    for group in (cost.times, cost.memory):
        for item in fields(group):
            _check_field(getattr(group, item.name), item.name, cost.stages)
    for edge, size in enumerate(cost.network.message):
        _check_number(size, f"message of edge {edge}")
    _check_link(cost.network.default, "between devices")
    _check_link(cost.network.host, "to the host")
    for (source, destination), link in cost.network.between.items():
        _check_link(link, f"{source}-{destination}")
    for kinds, ratio in cost.pairs.items():
        _check_number(ratio, f"pair {kinds}")
    for microbatch, ratio in enumerate(cost.sizes):
        _check_number(ratio, f"size of microbatch {microbatch}")


def _check_field(value: PerStage | float, name: str, stages: int) -> None:
    if not isinstance(value, tuple):
        _check_number(value, name, upper=math.inf)
        return
    if len(value) != stages:
        raise InputError(f"{name}: {len(value)} values for {stages} stages")
    for stage, number in enumerate(value):
        _check_number(number, f"{name} of stage {stage}")


def _check_link(link: Link, name: str) -> None:
    _check_number(link.latency, f"latency of link {name}")
    _check_number(link.bandwidth, f"bandwidth of link {name}", upper=math.inf)
    if link.bandwidth == 0:
        raise InputError(f"bandwidth of link {name} is 0; leave it out for an unlimited link")


def _check_number(value: float, name: str, *, upper: float = 1e300) -> None:
    if not 0 <= value <= upper:
        raise InputError(f"{name} is {value}; it must be a number, not negative")

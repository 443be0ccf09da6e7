"""The cost of a program.

Knows stages, edges and links; knows no schedule and no order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from weft.cost.checks import check_cost
from weft.cost.measurement import Measurement
from weft.cost.parts import divided, sharing
from weft.cost.provenance import Marks, Provenance, marks_by_kind
from weft.errors import InputError
from weft.ir.actions import Actions, Column, Index
from weft.ir.earliest import Seconds
from weft.ir.kinds import Kind, Part
from weft.ir.program import Program
from weft.ir.values import Value

PerStage = tuple[float, ...]
Shares = tuple[float, float, float, float]
Parts = Shares | tuple[Shares, ...]  # of every stage alike, or stage by stage

EVEN: Shares = (1 / 3, 1 / 6, 1 / 3, 1 / 6)  # of a layer whose communication is a third of it


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of each stage for one microbatch of ordinary size.

    A whole backward is I + W, unless `backward` says how long it takes where a stage is never
    split. `update` is of all weights of a stage, its ends of tied ones included: summing and
    updating these takes no time of its own. `close` is what passes between the last gradient of a
    stage and whoever reads them all: they are measured or laid out to be sent. Where copies share
    an update, half of `reduce` is the sum and half the gather, unless `gather` is known as well.
    """

    forward: PerStage
    input_grad: PerStage
    weight_grad: PerStage
    recompute: PerStage
    update: PerStage
    reduce: PerStage
    backward: PerStage | None = None
    close: PerStage | None = None
    gather: PerStage | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of each stage; `saved` and `inputs` are per microbatch in flight.

    `scratch` is what an action needs besides while it runs, at most.
    """

    weights: PerStage
    gradients: PerStage
    optimizer: PerStage
    saved: PerStage  # what F keeps for the backward
    inputs: PerStage  # what F keeps where the stage is recomputed
    capacity: float = math.inf  # of one device
    host_capacity: float = math.inf  # that the host has for one device
    scratch: PerStage | None = None


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

    message: float | tuple[float, ...]  # bytes across an edge, either way: of all, or of each
    default: Link = Link()
    between: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    host: Link = Link()

    def sizes(self, edges: int) -> NDArray[np.float64]:
        """Bytes that cross each of this many edges."""
        each = self.message if isinstance(self.message, tuple) else (self.message,) * edges
        return np.array(each, np.float64)

    def links(self, source: Column, destination: Column) -> tuple[Seconds, Seconds]:
        """Latency and bandwidth from each device to the one beside it."""
        links, which = [self.default], np.zeros(len(source), np.int64)
        if self.between:
            ends = source.astype(np.int64) << 32 | destination
            pairs, which = np.unique(ends, return_inverse=True)
            named = ((pair >> 32, pair & 0xFFFFFFFF) for pair in pairs.tolist())
            links = [self.between.get(ends, self.default) for ends in named]
        latency = np.array([link.latency for link in links])[which]
        return latency, np.array([link.bandwidth for link in links])[which]


@dataclass(frozen=True, slots=True)
class Cost:
    """Times, memory and network of one model on one set of devices.

    pairs       seconds of an overlapped pair relative to running both, by kinds ("BF")
    parts       shares of F and of I that are attention, dispatch, experts and combine, of every
                stage alike or stage by stage
    sizes       relative size of each microbatch of a step; empty where all are equal
    overhead    seconds that a device's host needs between an action and the next one
    is_barrier  whether a step ends for all devices together (WALL) or steps overlap (SPAN)
    provenance  how the seconds of each stage are known, by field of Times, "network" or "host"
    measurement where and how well all this was measured, if it was

    Gradients that a sum reads from other devices travel as other values do where `reduce` is
    measured: then it is the sum alone. Where it is given or derived, it is all that a sum takes.
    """

    times: Times
    memory: Memory
    network: Network
    pairs: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[str, Parts] = field(default_factory=dict)
    sizes: tuple[float, ...] = ()
    overhead: float = 0.0
    is_barrier: bool = True
    provenance: Marks = field(default_factory=dict)
    measurement: Measurement | None = None

    def __post_init__(self) -> None:
        check_cost(self)

    @property
    def stages(self) -> int:
        """How many stages it describes."""
        return len(self.times.forward)

    def check_fits(self, program: Program) -> None:
        """Refuse a program of other stages, edges or microbatches than this cost describes."""
        if self.stages != program.stages:
            raise InputError(
                f"the cost describes {self.stages} stages, {program.name} has {program.stages}"
            )
        edges = len(program.graph.edges)
        if len(self.network.sizes(edges)) != edges:
            raise InputError(
                f"the cost describes {len(self.network.sizes(edges))} edges,"
                f" {program.name} has {edges}; one number for all of them fits any"
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
        seconds = self._seconds_by_stage(actions)[actions.kind, actions.stage]
        is_of_tie = np.isin(actions.kind, (Kind.REDUCE, Kind.UPDATE, Kind.GATHER))
        seconds[is_of_tie & (actions.edge >= 0)] = 0.0
        if (actions.segment >= 0).any():
            self._cut_into_parts(program, seconds)
        seconds = seconds * self.covered(actions)
        is_moved = np.isin(actions.kind, (Kind.OFFLOAD, Kind.ONLOAD))
        if is_moved.any():
            seconds[is_moved] = self.kept(program)[is_moved] / self.network.host.bandwidth
        self._add_copies(program, seconds)
        if not actions.joined.any():
            return seconds
        together = np.zeros(len(program.first_of_slot))
        np.add.at(together, program.slot_of, seconds)
        slots = np.unique(program.slot_of[actions.joined == 1])
        first = program.first_of_slot[slots]
        together[slots] *= self._overlaps()[actions.kind[first], actions.kind[first + 1]]
        return together

    def gaps(self, program: Program) -> Seconds:
        """For every slot of the program, how long its lane waits after it."""
        gaps = np.zeros(len(program.first_of_slot))
        if self.overhead:
            np.add.at(gaps, program.slot_of[program.actions.kind <= Kind.R], self.overhead)
        if self.times.close is not None:
            last = _last_before_updates(program)
            closing = np.array(self.times.close)[program.actions.stage[last]]
            np.add.at(gaps, program.slot_of[last], closing)
        return gaps

    def delays(self, program: Program) -> Seconds:
        """For every dependency of the program, how long its value travels."""
        dependencies, actions = program.dependencies, program.actions
        source = program.device_of[dependencies.producer]
        destination = program.device_of[dependencies.consumer]
        travels = np.isin(dependencies.value, (Value.ACTIVATION, Value.GRADIENT, Value.MESSAGE))
        rows = np.flatnonzero(travels & (source != destination))
        latency, bandwidth = self.network.links(source[rows], destination[rows])
        delays = self._norm_delays(program)
        delays[rows] = latency
        self._add_weight_gradients(program, delays)
        self._add_closing(program, delays)
        if np.isfinite(bandwidth).any():
            first, span = _in_common(
                actions, dependencies.producer[rows], dependencies.consumer[rows]
            )
            size = self.network.sizes(len(program.graph.edges))[dependencies.edge[rows]]
            seconds = size * self._work(first, span) / bandwidth
            is_sent_apart = dependencies.value[rows] == Value.MESSAGE
            delays[rows] += np.where(is_sent_apart, 0.0, seconds)
        return delays

    def _norm_delays(self, program: Program) -> Seconds:
        """A norm is one number: it takes the latency of its link and nothing more."""
        dependencies = program.dependencies
        delays = np.zeros(len(dependencies))
        rows = np.flatnonzero(dependencies.value == Value.NORM)
        source, destination = (
            program.device_of[ends[rows]] for ends in (dependencies.producer, dependencies.consumer)
        )
        latency, _ = self.network.links(source, destination)
        delays[rows] = np.where(source != destination, latency, 0.0)
        return delays

    def _add_weight_gradients(self, program: Program, delays: Seconds) -> None:
        """What gradients take to a sum on another device, where that is measured without it.

        And new weights to a gather; where copies share an update, each is sent its part alone,
        but for gradients of which a norm is needed. Of more than two copies each is sent its part
        of whole gradients, too, and then the sums of all other parts.
        """
        dependencies, actions = program.dependencies, program.actions
        marks = self.provenance.get("reduce", (Provenance.GIVEN,) * self.stages)
        is_apart = np.array([mark is Provenance.MEASURED for mark in marks])
        is_gather = actions.kind[dependencies.consumer] == Kind.GATHER
        rows = np.flatnonzero(
            ((dependencies.value == Value.WEIGHT_GRADIENT) | is_gather)
            & is_apart[actions.stage[dependencies.producer]]
        )
        producer, consumer = dependencies.producer[rows], dependencies.consumer[rows]
        source, destination = program.device_of[producer], program.device_of[consumer]
        latency, bandwidth = self.network.links(source, destination)
        copies = len(program.placement.pipes)
        share = 1 / copies
        gradients = np.array(self.memory.gradients)[actions.stage[producer]]
        if is_gather.any() and not program.norms:
            gradients = gradients * share
        elif copies > 2:
            gradients = gradients * 2 * share
            latency = np.where(is_gather[rows] | (actions.edge[consumer] >= 0), 1, 2) * latency
        weights = np.array(self.memory.weights)[actions.stage[producer]] * share
        size = np.where(is_gather[rows], weights, gradients)
        size = np.where(actions.edge[consumer] >= 0, 0.0, size)  # a tied weight is part of it
        delays[rows] = np.where(source != destination, latency + size / bandwidth, 0.0)

    def _add_closing(self, program: Program, delays: Seconds) -> None:
        """Whoever reads the gradients of a stage, or their norm, does so once they are closed."""
        if self.times.close is None:
            return
        dependencies, actions = program.dependencies, program.actions
        rows = np.flatnonzero(
            np.isin(dependencies.value, (Value.WEIGHT_GRADIENT, Value.NORM))
            & (actions.kind[dependencies.producer] <= Kind.R)
        )
        delays[rows] += np.array(self.times.close)[actions.stage[dependencies.producer[rows]]]

    def kept(self, program: Program) -> NDArray[np.float64]:
        """For every action, bytes that the forward of its microbatch keeps: inputs, if recomputed.

        The segments of a stage share these evenly.
        """
        actions, memory = program.actions, self.memory
        saved, inputs = np.array(memory.saved)[actions.stage], np.array(memory.inputs)
        each = np.where(is_recomputed(program), inputs[actions.stage], saved)
        return np.asarray(each * self.covered(actions) / sharing(actions, program.stages))

    def provenance_of(self, program: Program) -> NDArray[np.object_]:
        """For every action of the program, how its seconds are known: a Provenance."""
        self.check_fits(program)
        return marks_by_kind(self.provenance, self.stages)[
            program.actions.kind, program.actions.stage
        ]

    def covered(self, actions: Actions) -> NDArray[np.float64]:
        """How many ordinary microbatches' work each action covers."""
        work = self._work(actions.microbatch, actions.span)
        return np.where(actions.microbatch >= 0, work, 1.0)

    def _work(self, first: Column, span: Column) -> NDArray[np.float64]:
        """The size of `span` microbatches from the first on, in ordinary microbatches."""
        if not self.sizes:
            return span.astype(np.float64)
        step = len(self.sizes)
        sums = np.concatenate([[0.0], np.cumsum(self.sizes)])
        last = first + span
        whole = (last // step - first // step) * sums[-1]
        return np.asarray(whole + sums[last % step] - sums[first % step], np.float64)

    def _seconds_by_stage(self, actions: Actions) -> NDArray[np.float64]:
        """The seconds of [kind, stage]."""
        times = self.times
        table = np.zeros((len(Kind), self.stages))
        table[Kind.F] = times.forward
        table[Kind.B] = np.add(times.input_grad, times.weight_grad)
        if times.backward is not None:
            is_whole = ~np.isin(np.arange(self.stages), actions.stage[actions.kind == Kind.I])
            table[Kind.B, is_whole] = np.array(times.backward)[is_whole]
        table[Kind.I] = times.input_grad
        table[Kind.W] = times.weight_grad
        table[Kind.R] = times.recompute
        table[Kind.UPDATE] = times.update
        table[Kind.REDUCE] = times.reduce
        if times.gather is not None:
            table[Kind.GATHER] = times.gather
        elif (actions.kind == Kind.GATHER).any():  # half of the way there, half back
            table[Kind.REDUCE] = table[Kind.GATHER] = np.multiply(times.reduce, 0.5)
        return table

    def _cut_into_parts(self, program: Program, seconds: Seconds) -> None:
        """A part of a layer takes its share of its stage; W is half attention, half experts."""
        actions, times = program.actions, self.times
        table = np.zeros((len(Kind), len(Part), self.stages))
        forward, backward = (self._shares(kind) for kind in "FI")
        table[Kind.F] = forward * times.forward
        table[Kind.R] = forward * times.recompute
        table[Kind.I] = backward * times.input_grad
        table[Kind.W] = np.outer((0.5, 0.0, 0.5, 0.0), times.weight_grad)
        table[Kind.B] = table[Kind.I] + table[Kind.W]
        rows = np.flatnonzero(actions.segment >= 0)
        stage, part = actions.stage[rows], actions.segment[rows] % len(Part)
        seconds[rows] = divided(table, actions)[actions.kind[rows], part, stage]

    def _shares(self, kind: str) -> NDArray[np.float64]:
        """The shares of [part, stage]."""
        each = np.array(self.parts.get(kind, EVEN), np.float64).reshape(-1, len(Part))
        return np.broadcast_to(each.T, (len(Part), self.stages))

    def _add_copies(self, program: Program, seconds: Seconds) -> None:
        """A send keeps its link busy for its bytes."""
        actions = program.actions
        rows = np.flatnonzero(np.isin(actions.kind, (Kind.SEND_ACTIVATION, Kind.SEND_GRADIENT)))
        if not len(rows):
            return
        source, destination = program.device_of[rows], program.far_end[rows]
        _, bandwidth = self.network.links(source, destination)
        size = self.network.sizes(len(program.graph.edges))[actions.edge[rows]]
        work = self.covered(actions)[rows]
        seconds[rows] = size * work / bandwidth

    def _overlaps(self) -> NDArray[np.float64]:
        """By the kinds of two actions, how long they take as a pair, of what both take."""
        names, pairs = [kind.name for kind in Kind], self.pairs
        return np.array([[pairs.get(a + b, pairs.get(b + a, 1.0)) for b in names] for a in names])


def sizes_of_parts(program: Program) -> tuple[float, ...]:
    """The relative size of each microbatch where a method cuts them up; else none."""
    return (1 / program.parts,) * program.microbatches if program.parts > 1 else ()


def _last_before_updates(program: Program) -> Index:
    """The last gradient of each stage that an update reads without a sum: there it is closed."""
    dependencies, kind = program.dependencies, program.actions.kind
    rows = np.flatnonzero(
        (dependencies.value == Value.WEIGHT_GRADIENT)
        & (kind[dependencies.consumer] == Kind.UPDATE)
        & (kind[dependencies.producer] <= Kind.R)
    )
    last = np.full(len(program), -1)
    np.maximum.at(last, dependencies.consumer[rows], dependencies.producer[rows])
    return np.unique(last[last >= 0])


def _in_common(actions: Actions, producer: Index, consumer: Index) -> tuple[Column, Column]:
    """First and number of the microbatches that both actions cover."""
    first = np.maximum(actions.microbatch[producer], actions.microbatch[consumer])
    ends = actions.microbatch + actions.span
    return first, np.minimum(ends[producer], ends[consumer]) - first


def is_recomputed(program: Program) -> NDArray[np.bool_]:
    """For each action, whether its stage and microbatch have an R."""
    actions = program.actions
    again = np.flatnonzero(actions.kind == Kind.R)
    if not len(again):
        return np.zeros(len(actions), np.bool_)
    cell = actions.stage.astype(np.int64) << 32 | actions.microbatch.astype(np.int64)
    return np.isin(cell, cell[again])

"""Costs: what is asked for, as a cost of any program.

in units      of a device's share of the model: forward, backward, latency ...
from a file   of every stage, as `weft profile` measures them or a reader writes them
of a model    on a device, in seconds and bytes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

from weft.cost import (
    DEVICES,
    MODELS,
    Cost,
    Derivation,
    Device,
    Layout,
    Link,
    Network,
    Share,
    Storage,
    Transformer,
    flops,
    sizes_of_parts,
    stretched,
)
from weft.cost.mapping import named
from weft.errors import InputError
from weft.ir.graph import Backward
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.notation import read_cost, read_device, read_model
from weft.request.values import (
    AMOUNT,
    COUNT,
    SWITCH,
    TEXT,
    Bundle,
    Bytes,
    Numbers,
    Whole,
    given,
    refuse,
)
from weft.simulate import Steady
from weft.timeline import Timeline

MOST_SEQUENCES = 1 << 20
MOST_LENGTHS = 256
LINK = ("latency", "bandwidth")
COPY = 0.25  # of F + B: the time to copy a device's activations, where none is given

Base: TypeAlias = Cost | Share | Derivation
Described = TypeVar("Described", Transformer, Device)


@dataclass(frozen=True, slots=True)
class Machine(Bundle):
    """The model and the device that were asked for; None where nothing was."""

    model: str | None = given(TEXT)
    device: str | None = given(TEXT)
    microbatch_size: int | None = given(Whole(most=MOST_SEQUENCES))
    sequence: int | None = given(COUNT)
    layers: tuple[int, ...] | None = given(Numbers(int, "3,4,4,3"))
    tensor_parallel: int | None = given(COUNT)
    expert_parallel: int | None = given(COUNT)
    data_parallel: int | None = given(COUNT)
    shard_optimizer: bool = given(SWITCH, True)
    state_bytes: tuple[float, ...] | None = given(Numbers(float, "2,4,12"))


@dataclass(frozen=True, slots=True)
class Prices(Bundle):
    """The costs that were asked for in units or from a file; None where nothing was."""

    forward: float | None = given(AMOUNT)
    backward: float | None = given(AMOUNT)
    input_grad: float | None = given(AMOUNT)
    weight_grad: float | None = given(AMOUNT)
    pair: float | None = given(AMOUNT)
    latency: float | None = given(AMOUNT)
    cost: str | None = given(TEXT)


@dataclass(frozen=True, slots=True)
class Overrides(Bundle):
    """What is asked for instead of a link's, a device's or a stage's own; None is as usual.

    lengths  how many times as long each of the model's equal pieces takes, in order
    """

    latency: float | None = given(AMOUNT)
    bandwidth: float | None = given(AMOUNT)
    capacity: float | None = given(Bytes())
    lengths: tuple[float, ...] | None = given(Numbers(float, "1,1,2", MOST_LENGTHS))


class Speed(NamedTuple):
    """Tokens of the whole machine in a second, and its FLOP/s relative to its peak."""

    devices: int
    tokens_per_second: float
    mfu: float


@dataclass(frozen=True, slots=True)
class Costs:
    """What things cost, whatever the program.

    copy    seconds in which a device's activations go to the host, in units
    spread  the layout that measured costs are of; that of a model is with it
    """

    base: Base = field(default_factory=Share)
    overrides: Overrides = field(default_factory=Overrides)
    copy: float | None = None
    spread: Layout = field(default_factory=Layout)

    @classmethod
    def asked(cls, prices: Prices, machine: Machine) -> Costs:
        """The costs asked for; InputError where they contradict each other or a file is wrong."""
        asked = prices.asked
        if machine.asked:
            refuse("a model on a device has all costs", asked)
            return cls(_derivation(machine))
        if prices.cost is not None:
            refuse("--cost gives all costs", (name for name in asked if name != "cost"))
            return cls(read_cost(prices.cost))
        if "backward" in asked:
            halves = (name for name in asked if name in ("input_grad", "weight_grad"))
            refuse("--backward is both gradients together", halves)
            half = asked.pop("backward") / 2
            asked |= {"input_grad": half, "weight_grad": half}
        return cls(Share(**asked))

    def with_copies(self, seconds: float | None = None) -> Costs:
        """The same with a link to the host, as fast as asked for; a device has its own."""
        if isinstance(self.base, Share):
            usual = COPY * (self.base.forward + self.base.backward)
            return replace(self, copy=usual if seconds is None else seconds)
        if seconds is not None:
            raise InputError(
                "a cost file or a device has its own link to the host; leave out --copy"
            )
        return self

    def selective(self) -> Costs:
        """The same where norms and activation functions are computed again in the backward."""
        if not isinstance(self.base, Derivation):
            raise InputError(
                "--recompute selective needs --model and --device, by which it is known what stages"
                " save; other costs take `all` or stages like 0,2,4"
            )
        storage = replace(self.base.storage, is_selective=True)
        return replace(self, base=replace(self.base, storage=storage))

    @property
    def layout(self) -> Layout:
        """How a model is spread over processors beyond its stages."""
        return self.base.layout if isinstance(self.base, Derivation) else self.spread

    def of(self, program: Program) -> Cost:
        """What a program costs."""
        cost, overrides = self._of(program), self.overrides
        if self.copy is not None:
            host = Link(bandwidth=1 / self.copy) if self.copy > 0 else Link()
            cost = replace(cost, network=replace(cost.network, host=host))
        if overrides.lengths:
            factors = tuple(_length(overrides.lengths, program, s) for s in range(program.stages))
            cost = stretched(cost, factors)
        if overrides.capacity is not None:
            cost = replace(cost, memory=replace(cost.memory, capacity=overrides.capacity))
        return replace(cost, network=_overridden(cost.network, overrides))

    def _of(self, program: Program) -> Cost:
        if not isinstance(self.base, Cost):
            return self.base.cost(program)
        self.base.check_fits(program)
        if self.base.sizes or self.base.measurement:  # what was measured is a microbatch as it runs
            return self.base
        return replace(self.base, sizes=sizes_of_parts(program))

    def speed(self, timeline: Timeline, steady: Steady | None = None) -> Speed | None:
        """The speed of a step, or once a run has settled, where a model has one.

        None where a stage learns nothing. Every group that shares a stage feeds microbatches of
        its own; every processor of it counts.
        """
        program, base = timeline.program, self.base
        if not isinstance(base, Derivation):
            return None
        if any(stage.backward is not Backward.FULL for stage in program.graph.stages):
            return None
        microbatches, seconds = _rate(timeline, steady)
        if not seconds:
            return None
        layout = base.layout
        work = microbatches * flops(base.model) / seconds
        return Speed(
            devices=program.devices * layout.tensor * layout.copies,
            tokens_per_second=microbatches * base.model.tokens * layout.copies / seconds,
            mfu=work / (program.devices * layout.tensor * base.device.peak),
        )


def _length(lengths: Sequence[float], program: Program, stage: int) -> float:
    """That of the piece which a stage lies in; the model has a piece for each device."""
    piece = int(stage * program.placement.share)
    return lengths[piece] if piece < len(lengths) else 1.0


def _overridden(network: Network, overrides: Overrides) -> Network:
    asked = {name: value for name, value in overrides.asked.items() if name in LINK}
    if not asked:
        return network
    between = {ends: replace(link, **asked) for ends, link in network.between.items()}
    return replace(network, default=replace(network.default, **asked), between=between)


def _rate(timeline: Timeline, steady: Steady | None) -> tuple[float, float]:
    """As many ordinary microbatches in as many seconds."""
    program = timeline.program
    if steady is not None:
        return program.microbatches / program.parts, steady.period
    actions = program.actions
    is_entry = (actions.kind == Kind.F) & (actions.stage == 0)
    is_entry &= actions.segment == actions.segment[is_entry].min()
    return float(timeline.cost.covered(actions)[is_entry].sum()), timeline.makespan


# a model on a device


def _derivation(machine: Machine) -> Derivation:
    """The model, device and layout asked for; InputError where one is missing or wrong."""
    if machine.model is None or machine.device is None:
        raise InputError(_missing(machine))
    model = model_called(machine.model)
    return Derivation(
        model=replace(
            model,
            microbatch=machine.microbatch_size or model.microbatch,
            sequence=machine.sequence or model.sequence,
        ),
        device=device_called(machine.device),
        layout=Layout(
            experts=machine.expert_parallel or 1,
            replicas=machine.data_parallel or 1,
            layers=machine.layers or (),
            tensor=machine.tensor_parallel or 1,
            is_sharded=machine.shard_optimizer,
        ),
        storage=storage_of(machine.state_bytes),
    )


def _missing(machine: Machine) -> str:
    if machine.model is not None:
        return "--model needs --device, what it runs on: `weft list devices` has names"
    if machine.device is not None:
        return (
            "--device needs --model, what runs on it: `weft list models` has names"
            " (the number of devices is --devices)"
        )
    flag = next(iter(machine.asked)).replace("_", "-")
    return f"--{flag} describes a model on a device; give --model and --device too"


def is_model_file(name: str) -> bool:
    """Whether a model or device is described by a file."""
    path = Path(name)
    return len(path.parts) > 1 or path.suffix == ".json" or path.is_file()


def model_called(name: str) -> Transformer:
    """A preset, or what a file describes."""
    return _found(name, MODELS, read_model)


def device_called(name: str) -> Device:
    """A preset, or what a file describes."""
    return _found(name, DEVICES, read_device)


def _found(
    name: str, presets: Mapping[str, Described], read: Callable[[str], Described]
) -> Described:
    """A preset, or else what a file describes; gpt-6.2b has a suffix and is not a file."""
    if name not in presets and is_model_file(name):
        return read(name)
    kind = "model" if presets is MODELS else "device"
    return named(presets, name, f"{kind} or file")


def storage_of(sizes: tuple[float, ...] | None) -> Storage:
    """Bytes per parameter, of weights, gradients and optimizer state; as usual where none."""
    if sizes is None:
        return Storage()
    if len(sizes) != 3:
        raise InputError(
            f"--state-bytes has {len(sizes)} numbers; it takes three, of weights, gradients and"
            " optimizer state"
        )
    weights, gradients, optimizer = sizes
    return Storage(weights=weights, gradients=gradients, optimizer=optimizer)

"""A plan: partition, schedule, shape and layout of a training step, and what they come to.

    Program  ─┐
    Layout    ├──> Plan ──> Request: timed, drawn, explained, proved
    Costs     │
    Passes   ─┘

Knows neither how it was found nor what runs it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

from weft.cost import Cost, Derivation, Device, Layout, Storage, Transformer
from weft.cost.checks import check_number, check_text
from weft.errors import InputError
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.request.costs import Costs
from weft.request.passes import SELECTIVE, Passes
from weft.request.request import Request
from weft.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a step of a plan comes to, by simulation.

    seconds   of a whole step: pipeline, sums and update
    mfu       FLOP/s of the model relative to the peak of all devices; None where it has no FLOPs
    bubble    the fraction of device time that is idle within the step
    memory    most bytes at once on each device of the pipeline
    capacity  bytes of a device
    limit     what limits it, in words
    """

    seconds: float
    mfu: float | None = None
    tokens_per_second: float | None = None
    bubble: float
    memory: tuple[float, ...]
    capacity: float = math.inf
    limit: str = ""

    def __post_init__(self) -> None:
        for name in ("seconds", "bubble"):
            check_number(getattr(self, name), name)
        for name in ("mfu", "tokens_per_second"):
            if getattr(self, name) is not None:
                check_number(getattr(self, name), name)
        for device, size in enumerate(self.memory):
            check_number(size, f"memory of device {device}")
        check_number(self.capacity, "capacity", upper=math.inf)
        check_text(self.limit, "limit")

    @property
    def is_fitting(self) -> bool:
        """Whether every device has the memory."""
        return max(self.memory, default=0.0) <= self.capacity


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Partition, schedule, shape and layout of a training step, with its predicted figures.

    program  of one pipeline, as a schedule or a synthesis made it, before passes
    layout   the layers of each stage, and how devices share and copy them
    model    with its microbatch and sequence; None where stages were measured
    cost     what stages were measured to cost; None where that is derived of model and device
    source   how it was found
    """

    program: Program = field(repr=False)
    layout: Layout
    model: Transformer | None = None
    device: Device | None = None
    storage: Storage = field(default_factory=Storage)
    passes: Passes = field(default_factory=Passes)
    cost: Cost | None = field(default=None, repr=False)
    predicted: Prediction | None = None
    source: str = ""

    def __post_init__(self) -> None:
        check_text(self.source, "source")
        _check_layers(self)
        _check_costs(self)
        _check_passes(self)

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers of each stage; embedding and head, in the first and the last, not counted."""
        return self.layout.layers

    @property
    def is_selective(self) -> bool:
        """Whether norms and activation functions are computed again in the backward."""
        return self.storage.is_selective or self.passes.recompute == SELECTIVE

    @property
    def costs(self) -> Costs:
        """What things cost, measured or derived."""
        if self.cost is not None:
            return Costs(self.cost, spread=self.layout)
        assert self.model is not None
        assert self.device is not None
        return Costs(
            Derivation(
                model=self.model, device=self.device, layout=self.layout, storage=self.storage
            )
        )

    @cached_property
    def request(self) -> Request:
        """What is timed, drawn, explained and proved: a step, with its sums and updates."""
        places_updates = bool((self.program.actions.kind == Kind.UPDATE).any())
        return Request(
            self.program.name,
            passes=self.passes if places_updates else replace(self.passes, steps=1),
            costs=self.costs,
            given=self.program,
        )

    @cached_property
    def timeline(self) -> Timeline:
        """The step as it is simulated."""
        return self.request.timed()[0]

    def prediction(self, limit: str = "") -> Prediction:
        """What the step comes to; `limit` says in words what limits it."""
        timeline = self.timeline
        speed = self.costs.speed(timeline, self.request.settled())
        return Prediction(
            seconds=timeline.makespan / timeline.program.steps,
            mfu=speed and speed.mfu,
            tokens_per_second=speed and speed.tokens_per_second,
            bubble=timeline.bubble.wall,
            memory=tuple(timeline.memory.peaks),
            capacity=timeline.cost.memory.capacity,
            limit=limit,
        )


def _check_layers(plan: Plan) -> None:
    layers, stages = plan.layers, plan.program.stages
    if len(layers) != stages:
        raise InputError(
            f"layers: {len(layers)} counts, but {plan.program.name} has {stages} stages;"
            " give one for each"
        )
    if plan.model is not None and sum(layers) != plan.model.layers:
        raise InputError(f"layers: {sum(layers)} in all, but the model has {plan.model.layers}")


def _check_costs(plan: Plan) -> None:
    if plan.cost is not None:
        plan.cost.check_fits(plan.program)
        return
    for name in ("model", "device"):
        if getattr(plan, name) is None:
            raise InputError(
                f"there is no {name}; a plan has a model and a device, or the cost of its stages"
            )


def _check_passes(plan: Plan) -> None:
    for name in ("copy", "experts", "steps"):
        if getattr(plan.passes, name) is not None:
            raise InputError(f"passes: a plan has recompute and offload, not {name}")
    plan.passes.check(plan.program)

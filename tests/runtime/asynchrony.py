"""The central comparison of asynchronous training: against the reference, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from tests.runtime.exactness import is_in_order
from tests.runtime.models import MODELS, NamedParameters, adam
from weft.ir.program import Program
from weft.lower import recompute
from weft.runtime import Pipeline, Reference, Scale, Staleness
from weft.runtime import reference as versions
from weft.runtime.reference import Method, Version
from weft.schedules import REGISTRY, Shape

Groups = Sequence[Sequence[int]]


def descent(named: NamedParameters) -> torch.optim.Optimizer:
    return torch.optim.SGD([weight for _, weight in named], lr=0.05)


def momentum(named: NamedParameters) -> torch.optim.Optimizer:
    weights = [weight for _, weight in named]
    return torch.optim.SGD(weights, lr=0.02, momentum=0.9, weight_decay=0.01)


OPTIMIZERS: dict[str, Callable[[NamedParameters], torch.optim.Optimizer]] = {
    "descent": descent,
    "momentum": momentum,
    "adam": adam,
}


@dataclass(frozen=True)
class Asked:
    """What a pipeline and its reference are asked for besides, each by its own names."""

    warmup: int = 0
    predict: bool = False
    temper: int | None = None
    precision: torch.dtype | None = None
    scale: Scale | float | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """For a pipeline."""
        stale = Staleness(warmup=self.warmup, predict=self.predict, temper=self.temper)
        return {"staleness": stale, "precision": self.precision, "scale": self.scale}


@dataclass(frozen=True)
class Case:
    """A variant of a schedule, and which weights its literature says that it uses."""

    schedule: str
    variant: str
    devices: int
    microbatches: int
    version: Version
    round: int = 0
    backward: Version | None = None

    @property
    def id(self) -> str:
        name = "-".join(filter(None, (self.schedule, self.variant)))
        return f"{name}-{self.devices}x{self.microbatches}" + (f"r{self.round}" * (self.round > 0))

    @property
    def stages(self) -> int:
        return self.devices * (2 if self.schedule == "wpipe" else 1)

    @property
    def program(self) -> Program:
        return REGISTRY[self.schedule].program(
            Shape(
                devices=self.devices,
                microbatches=self.microbatches,
                stages_per_device=2 if self.schedule == "wpipe" else 1,
                variant=self.variant,
                round=self.round,
                updates=2 * self.devices + 2,
            )
        )

    @property
    def method(self) -> Method:
        """What the literature says, whatever the program does."""
        return Method(self.version, self.program.microbatches, self.backward)

    @property
    def scopes(self) -> dict[str, Groups]:
        """The stages that share a norm, for each scope that is well defined."""
        alone: dict[str, Groups] = {"stage": [[stage] for stage in range(self.stages)]}
        if self.schedule == "wpipe":
            return {"group": [range(self.devices), range(self.devices, self.stages)], **alone}
        if self.schedule == "pipedream-2bw" or self.variant == "vertical-sync":
            return {"global": [range(self.stages)], **alone}
        return alone


def cases(devices: int) -> list[Case]:
    """Every asynchronous schedule and variant, with the least microbatches and with more."""
    few = max(1, devices - 1)
    stale, fresh = versions.pipedream_2bw(), versions.pipedream_2bw(devices - 1)
    grouped = versions.wpipe(devices)
    made = [
        Case("naive-async", "", devices, 1, versions.pipedream(devices), 0, versions.synchronous()),
        Case("pipedream", "", devices, 1, versions.pipedream(devices)),
        Case("pipedream", "vertical-sync", devices, 1, versions.vertical_sync(devices)),
        *(Case("pipedream-2bw", "", devices, n, stale) for n in (few, devices, 2 * devices)),
        *(Case("pipedream-2bw", "fresh", devices, n, fresh) for n in (few, 2 * devices)),
        Case("pipedream-2bw", "eager", devices, 2 * devices, stale),
        *(Case("wpipe", "", devices, n, grouped, n) for n in (few, devices)),
        Case("wpipe", "", devices, 2 * devices, grouped, devices),
        Case("wpipe", "", devices, 3 * few, grouped, few),
        Case("wpipe", "fresh", devices, 2 * devices, versions.wpipe(devices, devices), devices),
        Case("wpipe", "eager", devices, 2 * devices, grouped, 2 * devices),
    ]
    return made


def named(name: str) -> Case:
    """The case of this id."""
    return next(case for devices in (2, 3, 4) for case in cases(devices) if case.id == name)


def differences(
    case: Case,
    *,
    model: str = "layers",
    updates: int = 6,
    drains: Collection[int] = (),
    asked: Asked | None = None,
    is_recomputed: bool = False,
    version: Version | None = None,
    transport: Any = "auto",
    **settings: Any,
) -> list[str]:
    """Train by the schedule and by the reference; what is not equal.

    `settings` are for both, but for what each calls by its own name.
    """
    make, data, loss = MODELS[model]
    program = recompute(case.program) if is_recomputed else case.program
    stages = make(program.stages)
    copies = copy.deepcopy(stages)
    shared = {"loss": loss, "optimizer": adam, "seed": 3, **settings}
    scope = shared.pop("scope", None)
    given = asked.settings if asked else {}
    pipeline = Pipeline(stages, program, transport=transport, clip_by=scope, **given, **shared)
    method = case.method if version is None else replace(case.method, version=version)
    if is_recomputed:
        method = replace(method, recompute=versions.always)
    if case.backward is not None:  # nothing is stashed, so that a drain starts anew
        starts = [update + 1 - (asked.warmup if asked else 0) for update in drains]
        method = versions.restarted(starts, method)
    groups = case.scopes[scope or next(iter(case.scopes))]
    reference = Reference(copies, method, groups=groups, **given, **shared)
    found, scales = [], {reference.scale}
    for update, (batch, target) in enumerate(data(program.microbatches * 3 - 1, updates)):
        result = pipeline.step(batch, target)
        wanted = reference.step(batch, target)
        scales.add(reference.scale)
        if not torch.allclose(result.loss, wanted, rtol=0, atol=0, equal_nan=True):
            found.append(f"the loss of update {update}")
        if update in drains:
            pipeline.drain()
    timeline = pipeline.gathered(pipeline.drain())
    if not is_in_order(timeline):
        found.append("the order")
    if asked is not None and isinstance(asked.scale, Scale) and len(scales) < 3:
        found.append("no scale that halves and doubles")  # so that the comparison is of nothing
    return found + _different(pipeline, copies)


def _different(pipeline: Pipeline, copies: list[nn.Module]) -> list[str]:
    """Weights and buffers that are not those of the reference."""
    return [
        f"{name} of stage {stage}"
        for (_, stage), module in pipeline.modules.items()
        for name, value in module.state_dict().items()
        if not torch.equal(value, copies[stage].state_dict()[name])
    ]

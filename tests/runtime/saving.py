"""Runs that are saved and resumed, for the tests of saves."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from tests.runtime.models import Data, NamedParameters, adam, layers, squared
from weft.ir.program import Program
from weft.runtime import Pipeline, split
from weft.runtime.saves import folder_of
from weft.schedules import REGISTRY, Shape

LAYERS = 8


def program_of(name: str, devices: int, variant: str = "") -> Program:
    """A small program of any schedule."""
    schedule = REGISTRY[name]
    least, most = schedule.stages_per_device
    microbatches = 1 if name in ("pipedream", "naive-async") else 2 * devices
    return schedule.program(
        Shape(
            devices=devices,
            microbatches=4 * devices if variant == "doubling" else microbatches,
            stages_per_device=least if most else 2,
            variant=variant,
            round=devices if name == "wpipe" else 0,
            updates=2 * devices + 2,
        )
    )


def decaying(optimizer: Optimizer) -> LRScheduler:
    return CosineAnnealingLR(optimizer, T_max=20)


def warmed(optimizer: Optimizer) -> LRScheduler:
    first, second = LinearLR(optimizer, 0.5, total_iters=3), decaying(optimizer)
    return SequentialLR(optimizer, [first, second], milestones=[3])


def grouped(named: NamedParameters) -> Optimizer:
    """Matrices decay, and all else does not; some stages have one kind alone."""
    every = [weight for _, weight in named]
    kinds = [(0.1, [w for w in every if w.dim() > 1]), (0.0, [w for w in every if w.dim() == 1])]
    groups = [{"params": found, "weight_decay": decay} for decay, found in kinds if found]
    return torch.optim.AdamW(groups, lr=1e-2)


def pipeline_of(program: Program, *, seed: int = 3, **settings: Any) -> Pipeline:
    """A pipeline of a small model, which is drawn by the same seed as all else."""
    given = {"loss": squared, "optimizer": adam, "scheduler": decaying, "clip": 0.5, "seed": seed}
    stages = settings.pop("stages", None)
    if stages is None:
        stages = split(layers(LAYERS, seed=seed), stages=program.stages)
    return Pipeline(stages, program, **{**given, **settings})


def trained(
    pipeline: Pipeline, data: Data, saves: Collection[int] = (), run: Path | None = None
) -> list[Tensor]:
    """The losses of these steps; after some of them the pipeline is saved."""
    losses = []
    for batch, target in data:
        losses.append(pipeline.step(batch, target).loss)
        if run is not None and pipeline.steps in saves:
            pipeline.save(folder_of(run, pipeline.steps), extra={"batch": pipeline.steps})
    return losses


def state_of(pipeline: Pipeline) -> dict[str, Tensor]:
    """All weights and buffers of this process, by their names, which are those of the model.

    Slices of a model have these names; all copies have the same values.
    """
    if pipeline.is_asynchronous:
        pipeline.drain()
    modules = pipeline.modules.values()
    return {name: value for module in modules for name, value in module.state_dict().items()}


def optimizer_state_of(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    """What optimizers keep for each weight, by its name, and its learning rate."""
    names = {
        weight: name
        for module in pipeline.modules.values()
        for name, weight in module.named_parameters()
    }
    return {
        names[weight]: {**optimizer.state[weight], "lr": group["lr"]}
        for optimizer in pipeline.optimizers
        for group in optimizer.param_groups
        for weight in group["params"]
    }


def is_equal(one: Any, other: Any) -> bool:
    """Bit for bit, in all that these have."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_equal(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)

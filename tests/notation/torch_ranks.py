"""One rank of torch's own runtime: it loads tables, trains a step with each, compares gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

WIDTH = 6
ROWS = 2  # of a microbatch
RUNTIME: Any = schedules._PipelineScheduleRuntime


class Case(NamedTuple):
    """A table, torch's name for its form, and what it is a table of."""

    name: str
    table: str
    form: str
    microbatches: int
    held: list[list[int]]  # for each rank, its stages

    @property
    def stages(self) -> int:
        return sum(map(len, self.held))


def stage_module(stage: int) -> nn.Module:
    """The same weights wherever it is made."""
    torch.manual_seed(stage)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


def batch(case: Case) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1000)
    rows = case.microbatches * ROWS
    return torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)


def gradients(modules: dict[int, nn.Module]) -> dict[int, Tensor]:
    """For each stage, all its gradients in a row."""
    found = {}
    for stage, module in modules.items():
        grads = [p.grad for p in module.parameters() if p.grad is not None]
        found[stage] = torch.cat([grad.flatten() for grad in grads])
    return found


def reference(case: Case) -> dict[int, Tensor]:
    """The mean of the microbatches' gradients, in one process."""
    modules = {stage: stage_module(stage) for stage in range(case.stages)}
    model = nn.Sequential(*modules.values())
    inputs, targets = (part.chunk(case.microbatches) for part in batch(case))
    for given, wanted in zip(inputs, targets, strict=True):
        torch.autograd.backward(nn.functional.mse_loss(model(given), wanted) / case.microbatches)
    return gradients(modules)


def pipelined(case: Case, rank: int, folder: Path) -> dict[int, Tensor]:
    """The same by torch's runtime."""
    modules = {stage: stage_module(stage) for stage in case.held[rank]}
    stages = [
        PipelineStage(module, stage, case.stages, torch.device("cpu"))
        for stage, module in modules.items()
    ]
    runtime = RUNTIME(stages, case.microbatches, loss_fn=nn.functional.mse_loss)
    runtime._load_csv(str(folder / case.table), format=case.form)
    given, wanted = batch(case)
    runtime.step(
        *([given] if 0 in modules else []),
        target=wanted if case.stages - 1 in modules else None,
    )
    return gradients(modules)


def error(case: Case, rank: int, folder: Path) -> float:
    """The largest difference of a stage's gradients, relative to the largest of them."""
    wanted = reference(case)
    found = pipelined(case, rank, folder)
    return max(
        float((found[stage] - wanted[stage]).abs().max() / wanted[stage].abs().max())
        for stage in found
    )


def errors(cases: list[Case], folder: Path) -> dict[str, float]:
    """In each rank: what each table does to the gradients of this rank's stages.

    Compared with one process that runs the whole model.
    """
    return {case.name: error(case, dist.get_rank(), folder) for case in cases}

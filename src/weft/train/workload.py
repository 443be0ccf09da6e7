"""The workload of a training run: stages of its model, batches of its data, their optimizers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias, TypedDict, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from weft.cost import Cost
from weft.lower import Amount
from weft.request import PlanFile
from weft.runtime import Stages, Staleness
from weft.runtime.compression import AskedCompression
from weft.runtime.experts import ALONE, ExpertGroup
from weft.runtime.losses import LossFunction
from weft.runtime.precision import AskedPrecision
from weft.runtime.profile import Effort, Sample, profiled
from weft.runtime.reference import versions_of
from weft.runtime.weights.options import Reduction
from weft.train.accelerator import described, taken
from weft.train.data import Batches
from weft.train.experts import segmented
from weft.train.model import loss_of, stages_of
from weft.train.settings import Settings

CLIP = 1.0
WARM_UP, LEAST = 0.1, 0.1  # share of the steps; share of the learning rate at the end

Measuring: TypeAlias = Callable[[str, float], None]  # what is measured, and which share


class Arguments(TypedDict):
    """What a pipeline and its reference are made with."""

    loss: LossFunction
    optimizer: Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer]
    clip: float
    seed: int
    precision: AskedPrecision
    compress: AskedCompression


class Sharing(TypedDict):
    """What a pipeline is made with besides: the work of copies, which a reference has not."""

    shard_optimizer: bool
    reduce: Reduction


class Workload:
    """Stages, batches and optimizers of a run.

    `program` is what runs: that of the settings, with stages cut where segments overlap. `mesh` has
    the ranks that share the layers of each device, where they do.
    """

    def __init__(
        self, settings: Settings, group: ExpertGroup = ALONE, mesh: DeviceMesh | None = None
    ) -> None:
        torch.set_num_threads(1)  # a device has one, and more would add up in another order
        self._settings = settings = settings.on_this_machine()
        self._device = taken(settings.accelerator, settings.ranks)
        self.mesh = mesh
        self._batches = Batches(
            settings.data, context=settings.context, is_shuffled=settings.shuffle
        )
        self._optimizers: list[Optimizer] = []
        self._group = group
        self.stages = self._cut()
        self.program = segmented(settings, self.stages)
        self._loss = loss_of(self.stages)

    def _cut(self) -> Stages:
        return stages_of(self._settings, self._device, self._group, self.mesh)

    def arguments(self) -> Arguments:
        return {
            "loss": self._loss,
            "optimizer": self._optimizer,
            "clip": CLIP,
            "seed": self._settings.seed,
            "precision": self._precision,
            "compress": self._compress,
        }

    @property
    def offload(self) -> Amount:
        return cast(Amount, self._settings.offload)  # one of its names, or a fraction

    @property
    def sharing(self) -> Sharing:
        reduction = cast(Reduction, self._settings.reduce)  # one of its names
        return {"shard_optimizer": self._settings.shard_optimizer, "reduce": reduction}

    @property
    def _precision(self) -> AskedPrecision:
        return cast(AskedPrecision, self._settings.precision)  # one of its names, or None

    @property
    def _compress(self) -> AskedCompression:
        return cast(AskedCompression, self._settings.compress)  # one of its names, or None

    def _optimizer(self, named: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
        made = AdamW([weight for _, weight in named], lr=self._settings.learning_rate)
        self._optimizers.append(made)
        return made

    def rate(self, step: int) -> float:
        """Up in a line, then down along a cosine."""
        steps = self._settings.steps
        warm = max(1, round(WARM_UP * steps))
        if step < warm:
            return self._settings.learning_rate * (step + 1) / warm
        turn = (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))) / 2
        return self._settings.learning_rate * (LEAST + (1 - LEAST) * turn)

    def scheduler(self, optimizer: Optimizer) -> LambdaLR:
        """The same rate, counted in the updates of one stage."""
        return LambdaLR(optimizer, lambda step: self.rate(step) / self._settings.learning_rate)

    @property
    def stale(self) -> Staleness:
        settings = self._settings
        return Staleness(
            warmup=settings.switch_after, predict=settings.predict, temper=settings.temper
        )

    @property
    def staleness(self) -> Callable[[int], int]:
        """The most updates that are missing in the weights of a step."""
        program, start = self._settings.program, self._settings.switch_after
        version, _ = versions_of(program)
        stages, microbatches = range(program.stages), range(program.microbatches)

        def stale(step: int) -> int:
            t = step - start
            if t < 0:
                return 0
            return max(t - version(t, i, s) for s in stages for i in microbatches)

        return stale

    @property
    def planned(self) -> PlanFile | None:
        """The plan that is run, if one is."""
        return self._settings.planned

    @property
    def accelerator(self) -> str:
        """What computes, in words."""
        return described(self._settings.accelerator, self._settings.ranks)

    @property
    def steps(self) -> int:
        return self._settings.steps

    def set_rate(self, step: int) -> None:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.rate(step)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        settings = self._settings
        return self._batches.batch(settings.sequences, seed=settings.seed, step=step)

    def profiled(self, effort: Effort, watch: Measuring = lambda what, share: None) -> Cost:
        """What the program costs, by a microbatch of the first step.

        As a plan has it where ranks share layers: what these take apart is not timed beforehand.
        """
        if self.mesh is not None and self.planned is not None:
            return self.planned.plan.costs.of(self.program)
        batch, targets = (part[: self._settings.microbatch_size] for part in self.batch(0))
        sample = Sample(
            batch,
            targets,
            self._loss,
            _adamw,
            CLIP,
            self._precision,
            self._compress,
            **self.sharing,
        )
        program = self._settings.program
        effort = replace(effort, link=effort.link or self.offload != "none")
        cost = profiled(self._cut(), program, sample, effort, watch, runs=self.program)
        assert cost.measurement is not None
        model = replace(cost.measurement, model=self._settings.sizes)
        return replace(cost, measurement=model)

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self._settings.sequences * self._settings.context


def _adamw(named: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
    return AdamW([weight for _, weight in named])

"""A training job: a program trains a small GPT on a text or tokens, step by step, watched.

    Settings ──> trained ──> Outcome     in one process, or on every rank of a process group
             └─> checked ──> losses      the same job on the reference, with no pipeline at all

Prints nothing, starts no process and writes no file.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import TypedDict

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW, Optimizer

from weft.errors import InputError
from weft.ir.program import Program
from weft.models import gpt
from weft.runtime import Pipeline, Reference, split
from weft.simulate import simulate
from weft.timeline import Bubble, Timeline
from weft.train.data import Batches, Data
from weft.train.profile import Sample, profiled

CLIP = 1.0
WARM_UP, LEAST = 0.1, 0.1  # share of the steps; share of the learning rate at the end


@dataclass(frozen=True, slots=True)
class Settings:
    """All that decides a run's losses."""

    program: Program
    data: Data
    steps: int = 50
    seed: int = 0
    microbatch_size: int = 4  # sequences
    learning_rate: float = 3e-3
    dropout: float = 0.0
    layers: int = 8
    hidden: int = 64
    heads: int = 4
    context: int = 64

    @property
    def sequences(self) -> int:
        """Of a step."""
        return self.program.microbatches * self.microbatch_size


@dataclass(frozen=True, slots=True)
class Metrics:
    """What one step gave."""

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    seconds: float  # from the first action's start to the last one's end
    bubble: float


Watch = Callable[[Metrics], None]


class _Arguments(TypedDict):
    """What a pipeline and its reference are made with."""

    loss: Callable[..., Tensor]
    optimizer: Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer]
    clip: float
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What a run gave; the measured timeline is that of the step with the median length."""

    metrics: tuple[Metrics, ...]
    predicted: Timeline
    measured: Timeline

    @property
    def losses(self) -> list[float]:
        return [step.loss for step in self.metrics]

    @property
    def predicted_step(self) -> float:
        """Seconds."""
        return self.predicted.makespan

    @cached_property
    def measured_step(self) -> float:
        """Seconds, the median of all steps."""
        return median(step.seconds for step in self.metrics)

    @property
    def bubble(self) -> Bubble:
        """Measured, of the step in the middle."""
        return self.measured.bubble

    @property
    def peak_memory(self) -> list[float]:
        """For each device, the most bytes of weights, gradients, optimizer and saved state."""
        return [float(peak) for peak in self.measured.memory.peaks]


def trained(settings: Settings, watch: Watch = lambda metrics: None) -> Outcome:
    """Train; in a process group every rank calls this, and all get the same outcome."""
    job = _Job(settings)
    program = settings.program
    is_group = dist.is_available() and dist.is_initialized()
    devices = range(dist.get_rank(), dist.get_rank() + 1) if is_group else range(program.devices)
    pipeline = Pipeline(job.stages, program, **job.arguments())
    cost = profiled(job.twins, program, job.sample(), devices)
    metrics, timelines = [], []
    for step in range(settings.steps):
        began = time.perf_counter()
        job.set_rate(step)
        result = pipeline.step(*job.batch(step))
        timelines.append(replace(pipeline.gathered(result), cost=cost))
        seconds = time.perf_counter() - began
        metrics.append(_metrics(job, step, (result.loss, result.norm), timelines[-1], seconds))
        watch(metrics[-1])
    middle = sorted(timelines, key=lambda timeline: timeline.makespan)[len(timelines) // 2]
    return Outcome(tuple(metrics), simulate(program, cost), middle)


def checked(settings: Settings) -> list[float]:
    """The losses of the same job on the reference."""
    job = _Job(settings)
    reference = Reference(job.stages, settings.program, **job.arguments())
    losses = []
    for step in range(settings.steps):
        job.set_rate(step)
        losses.append(float(reference.step(*job.batch(step))))
    return losses


def layers_of(blocks: int, stages: int) -> list[int] | None:
    """How many modules each stage gets: equal blocks, as embedding and head weigh little."""
    if stages > blocks:
        return None
    size, larger = divmod(blocks, stages)
    sizes = [size + (index < larger) for index in range(stages)]
    sizes[0] += 1
    sizes[-1] += 1
    return sizes


class _Job:
    """Model, data and optimizers of a run."""

    def __init__(self, settings: Settings) -> None:
        torch.set_num_threads(1)  # a device has one, and more would add up in another order
        self._settings = settings
        self._batches = Batches(settings.data, context=settings.context)
        self._optimizers: list[Optimizer] = []
        self.stages, self.twins = self._cut(), self._cut()

    def _cut(self) -> list[nn.Module]:
        stages, most = self._settings.program.stages, self._settings.layers + 2
        if stages > most:
            raise InputError(
                f"{self._settings.layers} layers, embedding and head make {most} stages at most,"
                f" {self._settings.program.name} has {stages}; use --layers {stages - 2}"
            )
        return split(self._model(), stages=stages, layers=layers_of(self._settings.layers, stages))

    def _model(self) -> nn.Sequential:
        settings = self._settings
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            return gpt(
                settings.data.vocabulary,
                layers=settings.layers,
                hidden=settings.hidden,
                heads=settings.heads,
                context=settings.context,
                dropout=settings.dropout,
            )

    def arguments(self) -> _Arguments:
        return {
            "loss": _loss,
            "optimizer": self._optimizer,
            "clip": CLIP,
            "seed": self._settings.seed,
        }

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

    def set_rate(self, step: int) -> None:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.rate(step)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        settings = self._settings
        return self._batches.batch(settings.sequences, seed=settings.seed, step=step)

    def sample(self) -> Sample:
        """A microbatch to profile with."""
        tokens, targets = (part[: self._settings.microbatch_size] for part in self.batch(0))
        return Sample(tokens, lambda output, microbatch: _loss(output, targets))

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self._settings.sequences * self._settings.context


def _metrics(
    job: _Job, step: int, found: Sequence[Tensor | None], timeline: Timeline, seconds: float
) -> Metrics:
    loss, norm = (0.0 if value is None else float(value) for value in found)
    return Metrics(
        step=step + 1,
        loss=loss,
        learning_rate=job.rate(step),
        gradient_norm=norm,
        tokens_per_second=job.tokens / seconds,
        seconds=timeline.makespan,
        bubble=timeline.bubble.wall,
    )


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())

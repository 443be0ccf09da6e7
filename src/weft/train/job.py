"""A training job: a program trains a small GPT on a text or tokens, step by step, watched.

    Settings ──> trained  ──> Outcome    in one process, or on every rank of a process group
             ├─> measured ──> Cost       what its program costs there
             └─> checked  ──> losses     the same job on the reference, with no pipeline at all

Prints nothing, starts no process and writes no file.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from weft.cost import Cost
from weft.errors import InputError
from weft.ir.program import Program
from weft.lower import unpaired
from weft.models import gpt
from weft.runtime import Delay, Delayed, Pipeline, Reference, Result, split
from weft.runtime.delayed import versions_of
from weft.runtime.fit import flowing, is_flowing
from weft.runtime.profile import BRIEF, THOROUGH, Effort, Sample, profiled
from weft.runtime.weights.staleness import scoped
from weft.simulate import simulate
from weft.timeline import Timeline
from weft.train.data import Batches, Data
from weft.train.outcome import Metrics, Outcome

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
    switch_after: int = 0  # synchronous steps before an asynchronous program begins
    is_predicting: bool = False
    temper: int | None = None

    def __post_init__(self) -> None:
        asked = self.switch_after or self.is_predicting or self.temper is not None
        if asked and not is_flowing(self.program):
            raise InputError(
                f"{self.program.name} flushes after every step: --switch-after, --predict and"
                f" --temper are for schedules that do not"
            )

    @property
    def sequences(self) -> int:
        """Of a step."""
        return self.program.microbatches * self.microbatch_size

    @property
    def model(self) -> dict[str, float]:
        """What the seconds of a stage depend on, by name."""
        names = ("layers", "hidden", "heads", "context", "microbatch_size", "dropout")
        return {name: getattr(self, name) for name in names} | {"vocabulary": self.data.vocabulary}


Watch = Callable[[Metrics], None]
Measuring = Callable[[str, float], None]  # what is measured, and the share of it that is


class _Arguments(TypedDict):
    """What a pipeline and its reference are made with."""

    loss: Callable[..., Tensor]
    optimizer: Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer]
    clip: float
    seed: int


def trained(
    settings: Settings, watch: Watch = lambda metrics: None, *, cost: Cost | None = None
) -> Outcome:
    """Train; in a process group every rank calls this, and all get the same outcome.

    Without a cost to predict with, the stages are first measured, briefly.
    """
    job = _Job(settings)
    program = unpaired(settings.program)  # here nothing overlaps
    if is_flowing(program):
        return _flowed(job, program, watch, cost)
    pipeline = Pipeline(job.stages, program, **job.arguments())
    cost = cost or job.profiled(BRIEF)
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


def _flowed(job: _Job, program: Program, watch: Watch, cost: Cost | None) -> Outcome:
    """The same where updates come between microbatches.

    The loss of a step is asked for once the next one has run: nobody has to wait for it then.
    """
    cost = cost or job.profiled(BRIEF)
    pipeline = Pipeline(
        job.stages, program, scheduler=job.scheduler, delay=job.delay, **job.arguments()
    )
    metrics: list[Metrics] = []
    results: list[Result] = []
    late = job.staleness
    began = time.perf_counter()

    def known(step: int) -> None:
        nonlocal began
        now = time.perf_counter()
        norm = pipeline.norm
        metrics.append(
            Metrics(
                step=step + 1,
                loss=float(results[step].loss),
                learning_rate=job.rate(step),
                gradient_norm=None if norm is None else float(norm),
                tokens_per_second=job.tokens / (now - began),
                seconds=None,
                bubble=None,
                staleness=late(step),
            )
        )
        began = now
        watch(metrics[-1])

    for step in range(job.steps):
        results.append(pipeline.step(*job.batch(step)))
        if step:
            known(step - 1)
    flight = pipeline.drain()
    known(job.steps - 1)
    if not flight.updates:
        raise InputError(
            f"all {job.steps} steps are synchronous; let --switch-after be less, or take a schedule"
            f" that flushes"
        )
    timeline = replace(pipeline.gathered(flight), cost=cost)
    return Outcome(tuple(metrics), simulate(timeline.program, cost), timeline)


def measured(settings: Settings, watch: Measuring) -> Cost:
    """What the program of a job costs; in a process group every rank calls this."""
    return _Job(settings).profiled(THOROUGH, watch)


def checked(settings: Settings) -> list[float]:
    """The losses of the same job on the reference."""
    job = _Job(settings)
    if is_flowing(settings.program):
        return _checked_flow(job, settings.program)
    reference = Reference(job.stages, settings.program, **job.arguments())
    losses = []
    for step in range(settings.steps):
        job.set_rate(step)
        losses.append(float(reference.step(*job.batch(step))))
    return losses


def _checked_flow(job: _Job, program: Program) -> list[float]:
    """The same by delayed training, with the versions that the program says."""
    version, backward = versions_of(program)
    delay = job.delay
    reference = Delayed(
        job.stages,
        version,
        microbatches=program.microbatches,
        backward=backward,
        scheduler=job.scheduler,
        groups=scoped(flowing(program), None),
        warmup=delay.warmup,
        predict=delay.predict,
        temper=delay.temper,
        **job.arguments(),
    )
    return [float(reference.step(*job.batch(step))) for step in range(job.steps)]


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
        self.stages = self._cut()

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

    def scheduler(self, optimizer: Optimizer) -> LambdaLR:
        """The same rate, counted in the updates of one stage."""
        return LambdaLR(optimizer, lambda step: self.rate(step) / self._settings.learning_rate)

    @property
    def delay(self) -> Delay:
        settings = self._settings
        return Delay(
            warmup=settings.switch_after, predict=settings.is_predicting, temper=settings.temper
        )

    @property
    def staleness(self) -> Callable[[int], int]:
        """How many updates the weights of a step are late at most."""
        program, start = self._settings.program, self._settings.switch_after
        version, _ = versions_of(program)
        stages, microbatches = range(program.stages), range(program.microbatches)

        def late(step: int) -> int:
            t = step - start
            if t < 0:
                return 0
            return max(t - version(t, i, s) for s in stages for i in microbatches)

        return late

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
        """What the program costs, by a microbatch of the first step."""
        batch, targets = (part[: self._settings.microbatch_size] for part in self.batch(0))
        sample = Sample(batch, targets, _loss, lambda named: AdamW([weight for _, weight in named]))
        cost = profiled(self._cut(), self._settings.program, sample, effort, watch)
        assert cost.measurement is not None
        model = replace(cost.measurement, model=self._settings.model)
        return replace(cost, measurement=model)

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

"""A training job: a program trains a small GPT on a text or tokens, step by step, watched.

    Settings ──> trained  ──> Outcome    in one process, or on every rank of a process group
             ├─> measured ──> Cost       what its program costs there
             └─> checked  ──> losses     the same job on the reference, with no pipeline at all

Prints nothing, starts no process and writes no file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from torch import Tensor

from weft.cost import Cost
from weft.errors import InputError
from weft.ir.program import Program
from weft.runtime import Pipeline, Reference, Result
from weft.runtime.profile import BRIEF, THOROUGH
from weft.runtime.suit import is_asynchronous
from weft.runtime.weights.staleness import scoped
from weft.simulate import simulate
from weft.timeline import Timeline
from weft.train.outcome import Metrics, Outcome
from weft.train.settings import Settings
from weft.train.workload import Measuring, Workload

Watch: TypeAlias = Callable[[Metrics], None]


def trained(
    settings: Settings, watch: Watch = lambda metrics: None, *, cost: Cost | None = None
) -> Outcome:
    """Train; in a process group every rank calls this, and all get the same outcome.

    Without a cost to predict with, the stages are first measured, briefly.
    """
    job = Workload(settings)
    cost = cost or job.profiled(BRIEF)
    if is_asynchronous(settings.program):
        return _asynchronous(job, settings.program, watch, cost)
    pipeline = Pipeline(job.stages, settings.program, cost=cost, **job.arguments())
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
    predicted = simulate(pipeline.program, cost)
    return Outcome(settings.program, tuple(metrics), predicted, middle, job.accelerator)


def _asynchronous(job: Workload, program: Program, watch: Watch, cost: Cost) -> Outcome:
    """The same where updates come between microbatches.

    The loss of a step is asked for once the next one has run: nobody has to wait for it then.
    """
    arguments = job.arguments()
    pipeline = Pipeline(
        job.stages, program, scheduler=job.scheduler, staleness=job.stale, cost=cost, **arguments
    )
    metrics, staleness, began = list[Metrics](), job.staleness, time.perf_counter()

    def known(step: int, result: Result) -> None:
        nonlocal began
        seconds = time.perf_counter() - began
        began += seconds
        loss = float(result.loss)
        metrics.append(_without_length(job, step, (loss, pipeline.norm), staleness(step), seconds))
        watch(metrics[-1])

    result = pipeline.step(*job.batch(0))
    for step in range(1, job.steps):
        before, result = result, pipeline.step(*job.batch(step))
        known(step - 1, before)
    flight = pipeline.drain()
    known(job.steps - 1, result)
    if not flight.updates:
        raise InputError(
            f"all {job.steps} steps are synchronous; lower --switch-after, or choose a synchronous"
            f" schedule"
        )
    timeline = replace(pipeline.gathered(flight), cost=cost)
    predicted = simulate(timeline.program, cost)
    return Outcome(program, tuple(metrics), predicted, timeline, job.accelerator)


def _without_length(
    job: Workload, step: int, found: tuple[float, Tensor | None], staleness: int, seconds: float
) -> Metrics:
    """Metrics of an asynchronous step, of which neither length nor bubble is known."""
    loss, norm = found
    return Metrics(
        step=step + 1,
        loss=loss,
        learning_rate=job.rate(step),
        gradient_norm=None if norm is None else float(norm),
        tokens_per_second=job.tokens / seconds,
        seconds=None,
        bubble=None,
        staleness=staleness,
    )


def measured(settings: Settings, watch: Measuring) -> Cost:
    """What the program of a job costs; in a process group every rank calls this."""
    return Workload(settings).profiled(THOROUGH, watch)


def checked(settings: Settings) -> list[float]:
    """The losses of the same job on the reference."""
    job, program = Workload(settings), settings.program
    if is_asynchronous(program):
        reference = Reference(
            job.stages,
            program,
            scheduler=job.scheduler,
            groups=scoped(program, None),
            staleness=job.stale,
            **job.arguments(),
        )
        return [float(reference.step(*job.batch(step))) for step in range(job.steps)]
    reference = Reference(job.stages, program, **job.arguments())
    losses = []
    for step in range(settings.steps):
        job.set_rate(step)
        losses.append(float(reference.step(*job.batch(step))))
    return losses


def _metrics(
    job: Workload, step: int, found: Sequence[Tensor | None], timeline: Timeline, seconds: float
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

"""Runners: a pipeline that takes the steps of a job, and what they give.

synchronous    a step is over, and its loss known, when it has been taken
asynchronous   its loss is asked for once the next one has been taken: nobody waits for it then
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from weft.cost import Cost
from weft.ir.program import Program
from weft.runtime import Pipeline, Result
from weft.runtime.suit import is_asynchronous
from weft.simulate import simulate
from weft.timeline import Timeline
from weft.train.outcome import Metrics, Outcome, Watch
from weft.train.workload import Workload


class Runner(Protocol):
    """A pipeline that takes steps.

    after  how many steps were taken before it was resumed
    known  how many steps before the next one the loss of a step is known on every rank
    """

    pipeline: Pipeline
    after: int
    known: int

    @property
    def outcome(self) -> Outcome:
        """What the steps have given so far."""

    def step(self, step: int) -> None:
        """Take a step."""

    def land(self) -> None:
        """Finish all steps that were taken."""


def runner_of(job: Workload, program: Program, cost: Cost, watch: Watch) -> Runner:
    """What takes the steps of a program; each rank has one."""
    kind = _Asynchronous if is_asynchronous(program) else _Synchronous
    return kind(job, program, cost, watch)


class _Synchronous:
    known = 1

    def __init__(self, job: Workload, program: Program, cost: Cost, watch: Watch) -> None:
        self._job, self._program, self._cost, self._watch = job, program, cost, watch
        self.pipeline = Pipeline(
            job.stages,
            program,
            mesh=job.mesh,
            cost=cost,
            offload=job.offload,
            record=True,
            **job.arguments(),
            **job.sharing,
        )
        self.after, self._metrics, self._timelines = 0, list[Metrics](), list[Timeline]()
        self._predicted = simulate(self.pipeline.program, cost)

    @property
    def outcome(self) -> Outcome:
        by_length = sorted(self._timelines, key=lambda timeline: timeline.makespan)
        middle = by_length[len(by_length) // 2] if by_length else self._predicted
        return Outcome(
            self._program,
            tuple(self._metrics),
            self._predicted,
            middle,
            self._job.accelerator,
            self.after,
            planned=self._job.planned,
        )

    def step(self, step: int) -> None:
        began = time.perf_counter()
        self._job.set_rate(step)
        result = self.pipeline.step(*self._job.batch(step))
        timeline = replace(self.pipeline.gathered(result), cost=self._cost)
        seconds = time.perf_counter() - began
        self._timelines.append(timeline)
        metrics = _metrics(self._job, step, result.loss, result.norm, seconds)
        length, bubble = timeline.makespan, timeline.bubble.wall
        self._metrics.append(replace(metrics, seconds=length, bubble=bubble))
        self._watch(self._metrics[-1])

    def land(self) -> None:
        """Every step has ended."""


class _Asynchronous:
    known = 2

    def __init__(self, job: Workload, program: Program, cost: Cost, watch: Watch) -> None:
        self._job, self._program, self._cost, self._watch = job, program, cost, watch
        self.pipeline = Pipeline(
            job.stages,
            program,
            mesh=job.mesh,
            scheduler=job.scheduler,
            staleness=job.stale,
            cost=cost,
            offload=job.offload,
            record=True,
            **job.arguments(),
            **job.sharing,
        )
        self.after, self._metrics, self._staleness = 0, list[Metrics](), job.staleness
        self._under_way: tuple[int, Result] | None = None
        self._began = time.perf_counter()
        self._predicted = self._measured = simulate(self.pipeline.program, cost)

    @property
    def outcome(self) -> Outcome:
        return Outcome(
            self._program,
            tuple(self._metrics),
            self._predicted,
            self._measured,
            self._job.accelerator,
            self.after,
            planned=self._job.planned,
        )

    def step(self, step: int) -> None:
        taken = step, self.pipeline.step(*self._job.batch(step))
        before, self._under_way = self._under_way, taken
        self._know(before)

    def land(self) -> None:
        if self._under_way is None:
            return
        flight = self.pipeline.drain()
        self._know(self._under_way)
        self._under_way = None
        if flight.updates:
            self._measured = replace(self.pipeline.gathered(flight), cost=self._cost)
            self._predicted = simulate(self._measured.program, self._cost)

    def _know(self, taken: tuple[int, Result] | None) -> None:
        """Metrics of a step, of which neither length nor bubble is known."""
        if taken is None:
            return
        step, result = taken
        now = time.perf_counter()
        seconds, self._began = now - self._began, now
        metrics = _metrics(self._job, step, result.loss, self.pipeline.norm, seconds)
        self._metrics.append(replace(metrics, staleness=self._staleness(step)))
        self._watch(self._metrics[-1])


def _metrics(
    job: Workload, step: int, loss: Tensor, norm: Tensor | None, seconds: float
) -> Metrics:
    return Metrics(
        step=step + 1,
        loss=float(loss),
        learning_rate=job.rate(step),
        gradient_norm=None if norm is None else float(norm),
        tokens_per_second=job.tokens / seconds,
        seconds=None,
        bubble=None,
    )

"""Updates: what is done with the gradients of a step, timed in steps of a pipeline.

    close    gradients are taken, and measured where nothing sums them, or laid out to be sent
    REDUCE   gradients of all copies, once they are here, are summed and handed out
    UPDATE   gradients are clipped, and the optimizer steps
    GATHER   parts of the weights that other copies have updated, once they are here, are written

Copies of the stages are trained for some steps, always with the same microbatch: so memory is
found as in a run, and ranks disturb each other as in a run. Waiting for another rank belongs to
none of these: gradients and weights on their way are messages, which take what the link says.

Of an asynchronous program only those updates count in which all devices are at work: where it is
filled and drained, those that work disturb each other less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from torch import nn

from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.lower.sums import gathers
from weft.runtime.pipeline import Pipeline
from weft.runtime.profile.found import Found
from weft.runtime.profile.memory import state_bytes
from weft.runtime.profile.parts import actions_of
from weft.runtime.profile.rests import gaps, trimmed_mean
from weft.runtime.profile.sample import Effort, Sample, Watch
from weft.runtime.result import Flight, Result, Span
from weft.runtime.suit import is_asynchronous

WARM_UP = 2


def updates(
    stages: Sequence[nn.Module],
    program: Program,
    sample: Sample,
    effort: Effort,
    watch: Watch,
    *,
    is_on_gpu: bool = False,
) -> tuple[dict[int, Found], float]:
    """What this process finds of its stages, training those given; every rank calls this.

    Where stages are cut into segments, also how long each of these takes; on a GPU each action, as
    a host that waits for it would disturb it, and what passes between two actions.
    """
    is_cut = bool((program.actions.segment >= 0).any())
    has_sums = len(program.placement.pipes) > 1 and not is_asynchronous(program)
    if sample.optimizer is None and not (has_sums or is_on_gpu or is_cut):
        return {}, 0.0
    found: dict[int, Found] = {}
    between = [np.empty(0)]
    with _Timed(
        stages,
        program,
        loss=sample.loss,
        optimizer=sample.optimizer,
        clip=sample.clip,
        precision=sample.precision,
        shard_optimizer=sample.shard_optimizer and sample.optimizer is not None,
        reduce=sample.reduce,
        nonfinite="ignore",
        deadline=None,  # stages may be slow
        transport=effort.transport,
        record=True,
    ) as pipeline:
        for ran in _runs(pipeline, sample, effort, watch):
            spans = settled([*ran.spans()], _ends(pipeline))
            for (stage, name), seconds in _seconds(spans, pipeline.laying).items():
                found.setdefault(stage, Found()).add(Found({name: seconds}))
            if is_on_gpu:
                between.append(gaps(pipeline.gathered(ran), margin=0.0))
            for stage, timed in actions_of(spans).items() if is_on_gpu or is_cut else ():
                found.setdefault(stage, Found()).add(timed)
        for pipe, stage in pipeline.modules:
            size = pipeline.state_bytes(pipe, stage)
            found.setdefault(stage, Found()).sizes["optimizer"] = float(size)
    return found, trimmed_mean(np.concatenate(between))


class _Timed(Pipeline):
    """A pipeline that knows how long gradients are laid out, which is part of no action.

    And how large the state of optimizers is.
    """

    @property
    def laying(self) -> dict[int, float]:
        """Seconds of the last update, by stage that has copies."""
        weights = self._parts.weights
        found = {stage: weights.exchanges(pipe, stage, None) for pipe, stage in self.modules}
        return {stage: sum(one.laying for one in each) for stage, each in found.items() if each}

    def state_bytes(self, pipe: int, stage: int) -> int:
        """Bytes that optimizers remember of a stage: of all its copies, where they share that."""
        groups = self._parts.weights.groups[pipe, stage]
        copies = len(self.program.placement.pipes) if gathers(self.program) else 1
        return copies * state_bytes(g.optimizer for g in groups if g.optimizer is not None)


def _runs(
    pipeline: Pipeline, sample: Sample, effort: Effort, watch: Watch
) -> Iterator[Result | Flight]:
    """Each step after the warm-up; or all of them, where their actions run into each other."""
    modules, count = [*pipeline.modules.values()], pipeline.program.microbatches
    data, target = [sample.batch] * count, [sample.target] * count
    steps = WARM_UP + effort.steps + 2 * _ends(pipeline)
    for step in range(steps):
        result = pipeline.step(data, target)
        if sample.optimizer is None:  # gradients would add up
            for module in modules:
                module.zero_grad()
        if pipeline.is_asynchronous:
            if step + 1 == WARM_UP:
                pipeline.drain()
        elif step >= WARM_UP:
            yield result
        watch("updates", (step + 1) / steps)
    if pipeline.is_asynchronous:
        yield pipeline.drain()


def _ends(pipeline: Pipeline) -> int:
    """Updates at either end of a flight in which a device may have nothing to do."""
    program = pipeline.program
    return math.ceil(program.devices / program.microbatches) if pipeline.is_asynchronous else 0


def settled(spans: Sequence[Span], ends: int) -> list[Span]:
    """Without those of this many updates at either end."""
    first, last = (choose(span.update for span in spans) for choose in (min, max))
    return [span for span in spans if first + ends <= span.update <= last - ends]


def _seconds(
    spans: Iterable[Span], laying: Mapping[int, float]
) -> dict[tuple[int, str], list[float]]:
    """Of every update, by stage and by field of Times.

    Where a process has several copies of a stage, the first sum of them is made for all: what took
    longest counts.
    """
    of_copies: dict[tuple[int, str, int], dict[int, float]] = {}
    for span in spans:
        stage, name = span.action.stage, _field(span)
        if name is not None:
            more = laying.get(stage, 0.0) if span.is_closing else 0.0
            copies = of_copies.setdefault((stage, name, span.update), {})
            copies[span.action.pipe] = copies.get(span.action.pipe, 0.0) + span.seconds + more
    found: dict[tuple[int, str], list[float]] = {}
    for (stage, name, _), copies in of_copies.items():
        found.setdefault((stage, name), []).append(max(copies.values()))
    return found


def _field(span: Span) -> str | None:
    """The field of Times that a span adds to; an update includes tied weights, others do not."""
    if span.is_closing:
        return "close"
    if span.action.kind is Kind.UPDATE:
        return "update"
    of_copies = {Kind.REDUCE: "reduce", Kind.GATHER: "gather"}
    return of_copies.get(span.action.kind) if span.action.edge is None else None

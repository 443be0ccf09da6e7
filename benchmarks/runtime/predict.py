"""Predicted over measured, for every schedule that flushes, with known durations.

    python benchmarks/runtime/predict.py [--ranks 4] [--microbatches 8] [--json FILE]
    python benchmarks/runtime/predict.py --weights 4 --schedules 1f1b chimera

The prediction is the simulator's, with a cost that was profiled on the same ranks before the steps.
With weights of some megabytes, steps sum gradients over copies, clip and update; then sums, updates
and what comes after the last backward have figures of their own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from bench import Estimate, Row, Watch, estimate, median, parsed, reported, run, settings
from contenders import Clock, Samples, Setting, Work, rounds, step_seconds, timed, with_weft
from known import FORM, NAP, Sleeping
from torch import Tensor, nn, optim

import weft
from weft.cost import Cost
from weft.ir.kinds import Kind
from weft.lower import unpaired
from weft.runtime.profile import Effort, Sample, profiled
from weft.schedules import REGISTRY
from weft.simulate import simulate
from weft.timeline import Timeline

COLUMNS = ("predicted ms", "measured ms", "predicted / measured")
RATIOS = ("UPDATE", "REDUCE", "after backwards", "after backwards ms", "overlap")
BACKWARDS = (Kind.B, Kind.I, Kind.W)
CLIP = 1.0


def profile(setting: Setting, work: Work, transport: str, sample: dict[str, Any]) -> Cost:
    """What Weft's own profile finds, every rank measuring its stages."""
    program = setting.program
    stages = [work.stage(stage) for stage in range(program.stages)]
    inputs, target = (data.chunk(setting.microbatches)[0] for data in (work.batch, work.target))
    effort = Effort(kinds=frozenset(), transport=transport)  # type: ignore[arg-type]
    return profiled(stages, program, Sample(inputs, target, work.loss, **sample), effort)


def job(setting: Setting, arguments: argparse.Namespace, tell: Watch) -> dict[str, Any]:
    """In a rank: the prediction, and the steps."""
    work = Work.random(Sleeping, setting.microbatches, *FORM)
    cost = profile(setting, work, arguments.transport, {})
    predicted = simulate(unpaired(setting.program), cost).makespan
    contender = with_weft(setting, work, arguments.transport)
    turns = {"weft": partial(timed, contender)}
    return {"predicted": predicted, **rounds(turns, arguments.steps, tell)}


def row(arguments: argparse.Namespace, setting: Setting, watch: Watch) -> Row:
    by_rank = run(job, setting, arguments, watch)
    predicted, steps = by_rank[0]["predicted"], step_seconds(by_rank, "weft")
    ratio = estimate(lambda step: predicted / step, steps)
    cells = [f"{predicted * 1e3:.1f}", median(steps).shown(1e3, 1), ratio.shown(digits=3)]
    return Row(cells, {"predicted": predicted, "ratio": ratio, "steps": steps.tolist()})


# with updates


class Heavy(Sleeping):
    """As Sleeping, with weights of so many megabytes, of which a forward reads one row."""

    def __init__(self, megabytes: float, stage: int) -> None:
        super().__init__(stage)
        rows = max(1, round(megabytes * 1e6 / (FORM[-1] * torch.float32.itemsize)))
        self.weight = nn.Parameter(torch.zeros(rows, FORM[-1]))

    def forward(self, value: Tensor) -> Tensor:
        row: Tensor = _Row.apply(self.weight, self._nap)  # type: ignore[no-untyped-call]
        return _Nap.apply(value) + row  # type: ignore[no-any-return, no-untyped-call]

    def weight_grad(self, value: Tensor, gradient: Tensor) -> tuple[Tensor]:
        time.sleep(self._nap)
        return (_first_row(self.weight, gradient.sum(0)),)


class _Nap(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: Tensor) -> Tensor:
        time.sleep(NAP)
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        time.sleep(NAP)
        return gradient.clone()


class _Row(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, weight: Tensor, nap: float) -> Tensor:
        context.nap = nap
        context.save_for_backward(weight)
        return weight[0].clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        time.sleep(context.nap)
        (weight,) = context.saved_tensors
        return _first_row(weight, gradient), None


def _first_row(weight: Tensor, gradient: Tensor) -> Tensor:
    """A gradient of all weights, as large as they are."""
    found = torch.zeros_like(weight)
    found[0] = gradient
    return found


class Figures(NamedTuple):
    """Seconds of all updates, of all sums, and from the last backward to the end of the step.

    `overlap` is the share of the sums that lies before the last backward of their device ends.
    """

    update: float
    reduce: float
    after: float
    overlap: float

    @classmethod
    def of(cls, timeline: Timeline) -> Figures:
        kind, device = timeline.program.actions.kind, timeline.program.device_of
        start, end = timeline.start, timeline.end
        taken = {one: (end - start)[kind == one].sum() for one in (Kind.UPDATE, Kind.REDUCE)}
        is_backward, is_sum = np.isin(kind, BACKWARDS), kind == Kind.REDUCE
        last = np.zeros(timeline.program.devices)
        np.maximum.at(last, device[is_backward], end[is_backward])
        before = np.clip(last[device[is_sum]], start[is_sum], end[is_sum]) - start[is_sum]
        total = taken[Kind.REDUCE]
        share = before.sum() / total if total else np.nan
        return cls(*map(float, (taken[Kind.UPDATE], total, end.max() - last.max(), share)))


def adamw(named: Iterable[tuple[str, nn.Parameter]]) -> optim.Optimizer:
    return optim.AdamW([weight for _, weight in named])


def updating_job(setting: Setting, arguments: argparse.Namespace, tell: Watch) -> dict[str, Any]:
    """In a rank: the prediction, and steps that update."""
    work = Work.random(partial(Heavy, arguments.weights), setting.microbatches, *FORM)
    updating = {"optimizer": adamw, "clip": CLIP}
    cost = profile(setting, work, arguments.transport, updating)
    stages = [work.stage(stage) for stage in range(setting.program.stages)]
    pipeline = weft.Pipeline(
        stages,
        setting.program,
        loss=work.loss,
        transport=arguments.transport,
        cost=cost,
        **updating,  # type: ignore[arg-type]
    )
    predicted = simulate(pipeline.program, cost)

    def turn() -> tuple[Clock, Figures]:
        torch.distributed.barrier()
        start = time.monotonic()
        result = pipeline.step(work.batch, work.target)
        clock = Clock(start, time.monotonic(), 0.0, 0.0)
        return clock, Figures.of(pipeline.gathered(result))

    found = rounds({"weft": turn}, arguments.steps, tell)["weft"]
    return {
        "step": predicted.makespan,
        "predicted": Figures.of(predicted),
        "weft": [clock for clock, _ in found],
        "measured": [figures for _, figures in found],
    }


def updating_row(arguments: argparse.Namespace, setting: Setting, watch: Watch) -> Row:
    by_rank = run(updating_job, setting, arguments, watch)
    step, predicted = by_rank[0]["step"], by_rank[0]["predicted"]
    steps, measured = step_seconds(by_rank, "weft"), Figures(*np.array(by_rank[0]["measured"]).T)
    ratios = {
        name: _ratio(getattr(predicted, name), getattr(measured, name))
        for name in ("update", "reduce", "after")
    } | {"step": _ratio(step, steps)}
    cells = [f"{step * 1e3:.1f}", median(steps).shown(1e3, 1), ratios["step"].shown(digits=3)]
    cells += [_shown(ratios[name]) for name in ("update", "reduce", "after")]
    cells.append(f"{predicted.after * 1e3:.1f} / {np.median(measured.after) * 1e3:.1f}")
    cells.append("" if np.isnan(predicted.overlap) else _overlap(predicted, measured))
    facts = {"predicted": step, "ratios": ratios, "figures": predicted, "steps": steps.tolist()}
    return Row(cells, facts | {"measured": [found.tolist() for found in measured]})


def _ratio(predicted: float, measured: Samples) -> Estimate:
    if not predicted:
        return Estimate(np.nan, np.nan, np.nan)
    return estimate(lambda found: predicted / found, measured)


def _shown(ratio: Estimate) -> str:
    return "" if np.isnan(ratio.value) else ratio.shown(digits=3)


def _overlap(predicted: Figures, measured: Figures) -> str:
    return f"{predicted.overlap:.2f} / {np.median(measured.overlap):.2f}"


if __name__ == "__main__":
    flushing = tuple(schedule.name for schedule in REGISTRY if not schedule.is_asynchronous)
    given = parsed(__doc__, ranks=(4,), microbatches=(8,), schedules=flushing)
    columns, make = (COLUMNS, row) if given.weights is None else (COLUMNS + RATIOS, updating_row)
    reported(given, columns, list(settings(given)), partial(make, given))

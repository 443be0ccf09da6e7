"""Predicted over measured step time, for every schedule that flushes, with known durations.

    python benchmarks/runtime/predict.py [--ranks 4] [--microbatches 8] [--json FILE]

The prediction is the simulator's, with a cost that was profiled on the same ranks before the steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from bench import Row, Watch, estimate, median, parsed, reported, run, settings
from contenders import Setting, Work, rounds, step_seconds, timed, with_weft
from known import FORM, Sleeping

from weft.cost import Cost
from weft.lower import unpaired
from weft.runtime.profile import Effort, Sample, profiled
from weft.schedules import REGISTRY
from weft.simulate import simulate

COLUMNS = ("predicted ms", "measured ms", "predicted / measured")


def profile(setting: Setting, work: Work, transport: str | None) -> Cost:
    """What Weft's own profile finds, every rank measuring its stages."""
    program = setting.program
    stages = [work.stage(stage) for stage in range(program.stages)]
    inputs, target = (data.chunk(setting.microbatches)[0] for data in (work.batch, work.target))
    effort = Effort(kinds=frozenset(), transport=transport or "auto")
    return profiled(stages, program, Sample(inputs, target, work.loss), effort)


def job(
    cost_of: Callable[[Setting, Work, str | None], Cost],
    setting: Setting,
    arguments: argparse.Namespace,
    tell: Watch,
) -> dict[str, Any]:
    """In a rank: the prediction, and the steps."""
    work = Work.random(Sleeping, setting.microbatches, *FORM)
    cost = cost_of(setting, work, arguments.transport)
    predicted = simulate(unpaired(setting.program), cost).makespan
    contender = with_weft(setting, work, arguments.transport)
    turns = {"weft": partial(timed, contender)}
    return {"predicted": predicted, **rounds(turns, arguments.steps, tell)}


def row(arguments: argparse.Namespace, setting: Setting, watch: Watch) -> Row:
    by_rank = run(partial(job, profile), setting, arguments, watch)
    predicted, steps = by_rank[0]["predicted"], step_seconds(by_rank, "weft")
    ratio = estimate(lambda step: predicted / step, steps)
    cells = [f"{predicted * 1e3:.1f}", median(steps).shown(1e3, 1), ratio.shown(digits=3)]
    return Row(cells, {"predicted": predicted, "ratio": ratio, "steps": steps.tolist()})


if __name__ == "__main__":
    flushing = tuple(schedule.name for schedule in REGISTRY if not schedule.is_asynchronous)
    given = parsed(__doc__, ranks=(4,), microbatches=(8,), schedules=flushing)
    reported(given, COLUMNS, list(settings(given)), partial(row, given))

"""Predicted over measured where the durations of actions vary: as if they did not, and with jitter.

    python benchmarks/runtime/jitter.py [--ranks 4] [--microbatches 8] [--json FILE]

Stages sleep as in known.py, each time a log-normally distributed time about 5 ms. The simulator has
the means that a profile of the same stages found, and how much it found that they vary.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import numpy as np
from bench import Row, Watch, estimate, median, parsed, reported, run, settings
from contenders import Setting, Work, rounds, step_seconds, timed, with_weft
from known import FORM, Sleeping
from predict import profile
from torch import distributed

from weft.jitter import Variation, jittered
from weft.lower import unpaired
from weft.simulate import simulate

VARIATION = 0.2  # standard deviation relative to the mean
SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zbv", "chimera", "dualpipev")
COLUMNS = ("predicted ms", "with jitter ms", "measured ms", "predicted / m.", "with jitter / m.")


class Varying:
    """Sleeps as long as it is asked to, on average."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def __call__(self, seconds: float) -> None:
        sigma = np.sqrt(np.log1p(VARIATION * VARIATION))
        time.sleep(seconds * self._generator.lognormal(-sigma * sigma / 2, sigma))


def job(setting: Setting, arguments: argparse.Namespace, tell: Watch) -> dict[str, Any]:
    """In a rank: both predictions, and the steps."""
    varying = Varying(seed=distributed.get_rank())
    work = Work.random(partial(Sleeping, sleep=varying), setting.microbatches, *FORM)
    cost = profile(setting, work, arguments.transport, {})
    program = unpaired(setting.program)
    still = simulate(program, cost).makespan
    found = jittered(program, cost, Variation.measured(cost))
    turns = {"weft": partial(timed, with_weft(setting, work, arguments.transport))}
    predicted = {"still": still, "jittered": still * found.mean}
    return predicted | rounds(turns, arguments.steps, tell)


def row(arguments: argparse.Namespace, setting: Setting, watch: Watch) -> Row:
    by_rank = run(job, setting, arguments, watch)
    steps = step_seconds(by_rank, "weft")
    predicted = [by_rank[0][name] for name in ("still", "jittered")]
    ratios = [estimate(partial(np.divide, seconds), steps) for seconds in predicted]
    cells = [
        *(f"{seconds * 1e3:.1f}" for seconds in predicted),
        median(steps).shown(1e3, 1),
        *(ratio.shown(digits=3) for ratio in ratios),
    ]
    return Row(cells, {"predicted": predicted, "ratios": ratios, "steps": steps.tolist()})


if __name__ == "__main__":
    given = parsed(__doc__, ranks=(4,), microbatches=(8,), schedules=SCHEDULES)
    reported(given, COLUMNS, list(settings(given)), partial(row, given))

"""Steps of stages whose durations are known, against the time that the schedule needs at least.

    python benchmarks/runtime/known.py [--ranks 2 4 8] [--microbatches 8 32] [--json FILE]

A stage sleeps 5 ms in F, 5 ms in I and 5 ms in W. The first stage has no I and twice the W. What a
step takes beyond the ideal time is its excess; Weft's is compared with torch's of the same rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from alone import alone, ideal_seconds
from bench import Row, Watch, estimate, median, parsed, reported, run, settings
from contenders import (
    ONE_STAGE,
    TORCH,
    Setting,
    Work,
    both,
    rounds,
    step_seconds,
)
from torch import Tensor, nn

NAP = 5e-3
FORM = (4, 64)  # of a microbatch
Sleep = Callable[[float], None]
COLUMNS = ("ideal ms", "torch ms", "weft ms", "torch / ideal", "weft / ideal", "excess", "target")
TARGETS = dict.fromkeys(TORCH, 0.5) | dict.fromkeys(ONE_STAGE, 0.8)


class Sleeping(nn.Module):
    """y = x + w, with naps on the way of x and on the way of w, so that I and W come apart."""

    def __init__(self, stage: int, sleep: Sleep = time.sleep) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(FORM[-1]))
        self._nap, self._sleep = NAP if stage else 2 * NAP, sleep

    def forward(self, value: Tensor) -> Tensor:
        weight = _Weight.apply(self.weight, self._nap, self._sleep)
        out: Tensor = _Input.apply(value, self._sleep) + weight
        return out

    # By these, Weft runs I and W apart (`weft.runtime.stage.deferred`); torch finds both branches.

    def input_grad(self, value: Tensor, gradient: Tensor) -> Tensor:
        self._sleep(NAP)
        return gradient.clone()

    def weight_grad(self, value: Tensor, gradient: Tensor) -> tuple[Tensor]:
        self._sleep(self._nap)
        return (gradient.sum(0),)


class _Input(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: Tensor, sleep: Sleep) -> Tensor:
        context.sleep = sleep
        sleep(NAP)
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        context.sleep(NAP)
        return gradient.clone(), None


class _Weight(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, weight: Tensor, nap: float, sleep: Sleep) -> Tensor:
        context.nap, context.sleep = nap, sleep
        return weight.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        context.sleep(context.nap)
        return gradient.clone(), None, None


def job(setting: Setting, arguments: argparse.Namespace, tell: Watch) -> dict[str, Any]:
    """In a rank: torch, Weft and the stages alone, in turn."""
    work = Work.random(Sleeping, setting.microbatches, *FORM)
    turns = both(setting, work, arguments.transport) | {"alone": alone(setting, work)}
    return rounds(turns, arguments.steps, tell)


def row(arguments: argparse.Namespace, setting: Setting, watch: Watch) -> Row:
    by_rank = run(job, setting, arguments, watch)
    steps = {name: step_seconds(by_rank, name) for name in ("torch", "weft")}
    least = ideal_seconds(setting, by_rank)
    ratios = {
        name: estimate(lambda step, best: step / best, taken, least)
        for name, taken in steps.items()
    }
    excess = estimate(
        lambda one, other, best: (other - best) / (one - best),
        *steps.values(),
        least,
    )
    target = TARGETS[setting.schedule]
    facts = {
        "ideal": median(least),
        "ratio": ratios,
        "excess": excess,
        "target": target,
        "steps": {name: taken.tolist() for name, taken in steps.items()},
        "alone": least.tolist(),
    }
    cells = [
        facts["ideal"].shown(1e3, 1),
        *(median(taken).shown(1e3, 1) for taken in steps.values()),
        *(ratio.shown(digits=3) for ratio in ratios.values()),
        excess.shown(),
        f"{target} {'met' if excess.value <= target else 'missed'}",
    ]
    return Row(cells, facts)


if __name__ == "__main__":
    given = parsed(__doc__, ranks=(2, 4, 8), microbatches=(8, 32), schedules=tuple(TORCH))
    reported(given, COLUMNS, list(settings(given)), partial(row, given))

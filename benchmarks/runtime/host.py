"""What a runtime costs the host: stages that do next to nothing, so that a step is all overhead.

    python benchmarks/runtime/host.py [--ranks 2 4] [--microbatches 64] [--json FILE]

Times are divided by the compute actions of a rank. Wall is the step's, from the first start to the
last end; CPU is the main thread's, the mean of all ranks.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
import torch
from bench import Estimate, Row, Watch, estimate, median, parsed, reported, run, settings
from contenders import ONE_STAGE, TORCH, Samples, Setting, Work, both, rounds, step_seconds
from torch import Tensor, nn

FORM = (1, 16)  # of a microbatch
TARGETS = dict.fromkeys(TORCH, 0.5) | dict.fromkeys(ONE_STAGE, 0.7)
COLUMNS = (
    "torch wall µs",
    "weft wall µs",
    "ratio",
    "torch CPU µs",
    "weft CPU µs",
    "ratio",
    "target",
)


class Scale(nn.Module):
    """y = x · w."""

    def __init__(self, stage: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(FORM[-1]))

    def forward(self, value: Tensor) -> Tensor:
        return value * self.weight


def job(setting: Setting, arguments: argparse.Namespace, tell: Watch) -> dict[str, Any]:
    """In a rank: torch and Weft in turn."""
    work = Work.random(Scale, setting.microbatches, *FORM)
    return rounds(both(setting, work, arguments.transport), arguments.steps, tell)


def row(arguments: argparse.Namespace, setting: Setting, watch: Watch) -> Row:
    by_rank = run(job, setting, arguments, watch)
    actions = len(setting.program) / setting.ranks
    taken: dict[str, list[Samples]] = {"wall": [], "thread": [], "process": []}
    for name in ("torch", "weft"):
        mean = np.array([found[name] for found in by_rank]).mean(0)
        taken["wall"].append(step_seconds(by_rank, name) / actions)
        taken["thread"].append(mean[:, 2] / actions)
        taken["process"].append(mean[:, 3] / actions)
    ratios = {what: estimate(lambda one, other: other / one, *pair) for what, pair in taken.items()}
    cells = [
        cell
        for what in ("wall", "thread")
        for cell in (*(median(one).shown(1e6, 0) for one in taken[what]), ratios[what].shown())
    ]
    target = TARGETS[setting.schedule]
    samples = {what: [one.tolist() for one in pair] for what, pair in taken.items()}
    facts = {"actions": actions, "ratios": ratios, "target": target, "torch, weft": samples}
    return Row([*cells, _verdict(ratios, target)], facts)


def _verdict(ratios: dict[str, Estimate], target: float) -> str:
    is_met = max(ratios["wall"].value, ratios["thread"].value) <= target
    return f"{target} {'met' if is_met else 'missed'}"


if __name__ == "__main__":
    given = parsed(__doc__, ranks=(2, 4), microbatches=(64,), schedules=tuple(TORCH))
    reported(given, COLUMNS, list(settings(given)), partial(row, given))

"""Real compute: a pipeline of transformer blocks against one process that accumulates gradients.

    python benchmarks/runtime/compute.py [--ranks 2] [--microbatches 8] [--json FILE]

Every process has one thread. One process, torch and Weft take turns, so speed-ups are of the same
rounds. The bound is the time of one process over the schedule's in Weft's simulator, with each
action as long as a rank takes for it that runs its actions alone, with no messages.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from alone import alone, ideal_seconds
from bench import Row, Watch, estimate, median, parsed, reported, run, settings
from contenders import (
    TORCH,
    Contender,
    Setting,
    Work,
    both,
    rounds,
    step_seconds,
    timed,
    with_weft,
)
from torch import nn

from weft.models.gpt import Block

BLOCKS, HIDDEN, HEADS = 8, 256, 4
FORM = (4, 64, HIDDEN)  # of a microbatch
COLUMNS: dict[str, tuple[float, int]] = {  # and how they are shown
    "one process ms": (1e3, 0),
    "torch": (1, 2),
    "weft": (1, 2),
    "bound": (1, 2),
    "torch / bound": (1, 2),
    "weft / bound": (1, 2),
}


def blocks(stages: int, stage: int) -> nn.Module:
    """The blocks of a stage, the same wherever they are made."""
    torch.manual_seed(1 + stage)
    return nn.Sequential(*(Block(HIDDEN, HEADS, dropout=0.0) for _ in range(BLOCKS // stages)))


def job(setting: Setting, arguments: argparse.Namespace, tell: Watch) -> dict[str, Any]:
    """In a rank: one process, torch, Weft and the stages alone, in turn."""
    stage = partial(blocks, setting.program.stages)
    work = Work.random(stage, setting.microbatches, *FORM)
    turns = {"whole": partial(timed, whole(setting, work)), "alone": alone(setting, work)}
    if arguments.alone:
        turns["weft"] = partial(timed, with_weft(setting, work, arguments.transport))
    else:
        turns |= both(setting, work, arguments.transport)
    return rounds(turns, arguments.steps, tell)


def whole(setting: Setting, work: Work) -> Contender:
    """The whole model on rank 0, while the others wait."""
    if dist.get_rank():
        return Contender(lambda: None, {})
    model = nn.Sequential(*(work.stage(stage) for stage in range(setting.program.stages)))

    def step() -> None:
        parts = (data.chunk(setting.microbatches) for data in (work.batch, work.target))
        for given, wanted in zip(*parts, strict=True):
            torch.autograd.backward(work.loss(model(given), wanted) / setting.microbatches)

    return Contender(step, {(0, 0): model})


def row(arguments: argparse.Namespace, setting: Setting, watch: Watch) -> Row:
    by_rank = run(job, setting, arguments, watch)
    one = step_seconds(by_rank, "whole")
    least = ideal_seconds(setting, by_rank)
    bound = estimate(lambda base, best: base / best, one, least)
    facts = {"one process ms": median(one), "bound": bound}
    for name in by_rank[0].keys() & {"torch", "weft"}:
        taken = step_seconds(by_rank, name)
        facts[name] = estimate(lambda base, step: base / step, one, taken)
        facts[f"{name} / bound"] = estimate(lambda step, best: best / step, taken, least)
    cells = [facts[n].shown(*s) if n in facts else "" for n, s in COLUMNS.items()]
    return Row(cells, facts)


if __name__ == "__main__":
    given = parsed(__doc__, ranks=(2,), microbatches=(8,), schedules=tuple(TORCH))
    reported(given, list(COLUMNS), list(settings(given)), partial(row, given))

"""What forwards keep, on the host until it is needed: the time of a step, and memory.

    python benchmarks/gpu/offload.py [--hidden 2048 4096 6144] [--json FILE]
    python benchmarks/gpu/offload.py --device cpu --quick

1f1b on four devices with 16 microbatches of 1 x 4096, a GPT block in bfloat16 on each, no update.

none         everything stays on the device
all          `Pipeline(offload="all")`
save_on_cpu  torch.autograd.graph.save_on_cpu(pin_memory=True) around each stage

alone  all devices in one process, which has the whole GPU and its link to the host
ranks  a process for each device, with a part of the GPU by MPS, which share the link
"""

from __future__ import annotations

import argparse
import gc
from functools import partial
from typing import Any

import torch
from borrowed import (
    Contender,
    Row,
    Turn,
    Watch,
    finished,
    median,
    reported,
    rounds,
    step_seconds,
    timed,
)
from common import Setting, here, measured, parsed, settings, work_of
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu

import weft
from weft.ir.kinds import Kind
from weft.ir.program import Program

CONTENDERS = ("none", "all", "save_on_cpu")
SETTLING = 3  # steps before the peak of memory
GB = 1e9
COLUMNS = (
    "where",
    "none ms",
    "all / none",
    "save_on_cpu / none",
    "moved %",
    "kept, none GB",
    "all GB",
    "save_on_cpu GB",
    "gone %",
)


class OnHost(nn.Module):
    """A stage as torch offloads it."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, value: Tensor) -> Any:
        with save_on_cpu(pin_memory=value.is_cuda):
            return self.stage(value)


class OneProcess(Setting):
    """A row whose devices are all in one process."""

    @property
    def ranks(self) -> int:
        return 1

    @property
    def refusal(self) -> str:
        return Setting(*self).refusal


# in a rank


def job(setting: Setting, arguments: argparse.Namespace, tell: Watch) -> dict[str, Any]:
    """Steps of all contenders in turn, the most memory of each, and what was moved."""
    whole = Setting(*setting)
    work, program = work_of(whole, arguments), whole.program
    memory: dict[str, Any] = {}
    turns: dict[str, Turn] = {}
    for name in CONTENDERS:
        gc.collect()
        before = allocated(arguments)
        stages: list[nn.Module] = [work.stage(stage) for stage in range(program.stages)]
        pipeline = weft.Pipeline(
            [OnHost(stage) for stage in stages] if name == "save_on_cpu" else stages,
            program,
            loss=work.loss,
            nonfinite="ignore",  # which waits for no loss
            transport=setting.transport,  # type: ignore[arg-type]
            offload="all" if name == "all" else "none",
        )
        step = partial(pipeline.step, work.batch, work.target, update=False)
        contender = Contender(finished(step, here(arguments)), pipeline.modules)
        for _ in range(SETTLING):
            contender.step()
        memory[name] = {"idle": allocated(arguments) - before}
        memory[name]["share"] = offloaded(pipeline.program)
        if arguments.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        contender.step()
        memory[name]["peak"] = most(arguments) - before
        turns[name] = partial(timed, contender)
    return {"memory": memory} | rounds(turns, arguments.steps, tell)


def offloaded(program: Program) -> float:
    """The share of the forwards of the first device whose state goes to the host."""
    kinds = program.actions.kind[program.device_of == 0]
    return float((kinds == Kind.OFFLOAD).sum() / (kinds == Kind.F).sum())


def allocated(arguments: argparse.Namespace) -> int:
    return torch.cuda.memory_allocated() if arguments.device == "cuda" else 0


def most(arguments: argparse.Namespace) -> int:
    return torch.cuda.max_memory_allocated() if arguments.device == "cuda" else 0


# the report


def row(arguments: argparse.Namespace, setting: Setting, watch: Watch) -> Row:
    alone = isinstance(setting, OneProcess)
    given = argparse.Namespace(**vars(arguments) | ({"share": 0} if alone else {}))
    by_rank = measured(job, setting, given, watch)
    none, moved, torchs = (step_seconds(by_rank, name) for name in CONTENDERS)
    first = by_rank[0]["memory"]
    kept = {name: first[name]["peak"] - first[name]["idle"] for name in CONTENDERS}
    gone = 1 - kept["all"] / kept["none"] if kept["none"] else 0.0
    ratios = [median(one / none) for one in (moved, torchs)]
    cells = [
        "all in one process" if alone else "a rank each",
        median(none).shown(1e3, 1),
        *(ratio.shown(digits=3) for ratio in ratios),
        f"{100 * first['all']['share']:.0f}",
        *(f"{kept[name] / GB:.2f}" for name in CONTENDERS),
        f"{100 * gone:.0f}",
    ]
    facts = {"offloaded": first["all"]["share"], "kept": kept, "gone": gone}
    facts |= dict(zip(("all / none", "save_on_cpu / none"), ratios, strict=True))
    samples = dict(zip(CONTENDERS, (none.tolist(), moved.tolist(), torchs.tolist()), strict=True))
    return Row(cells, facts | samples)


def rows(arguments: argparse.Namespace) -> list[Setting]:
    """In one process for all sizes, on ranks for the largest."""
    ranks = settings(arguments)
    alone = [OneProcess(*one._replace(transport="loopback")) for one in ranks]
    return [*alone, ranks[-1]]


if __name__ == "__main__":
    asked = parsed(
        __doc__,
        schedules=("1f1b",),
        transports=["peer"],
        hidden=[2048, 3072, 4096, 6144],
        layers=[1],
        rows=1,
        context=4096,
        steps=4,
    )
    reported(asked, COLUMNS, rows(asked), partial(row, asked))

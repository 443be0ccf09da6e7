"""How memory grows with the number of microbatches: boundary tensors of 1 MiB.

    python benchmarks/runtime/memory.py [--ranks 4] [--microbatches 16 64] [--json FILE]

Peak resident memory (VmHWM) of a few steps over what was resident before the first of them, on the
worst rank; each contender has processes of its own. Shared pages count on every rank that has
touched them, and stand by themselves too, as they are after the last step.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
from bench import Row, Watch, parsed, reported, run, settings
from contenders import Contender, Setting, Work, clear, with_torch, with_weft
from torch import Tensor, nn

FORM = (256, 1024)  # of a microbatch: 1 MiB
TINY = (1, 1024)
MEBI = 1 << 20
TARGET = 30.0  # MiB
PROCESS = Path("/proc/self")


class Scale(nn.Module):
    """y = x · w."""

    def __init__(self, stage: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(FORM[-1]))

    def forward(self, value: Tensor) -> Tensor:
        return value * self.weight


def job(name: str, setting: Setting, arguments: argparse.Namespace, tell: Watch) -> dict[str, int]:
    """In a rank: bytes that the steps have added."""
    tiny = Work.random(Scale, setting.microbatches, *TINY)
    work = Work.random(Scale, setting.microbatches, *FORM)
    made(name, setting, tiny, arguments).step()  # whatever a first step loads is loaded
    contender = made(name, setting, work, arguments)
    (PROCESS / "clear_refs").write_text("5")  # the peak is what is resident now
    before = resident()
    for _ in range(arguments.steps):
        contender.step()
        clear(contender)
        tell()
    after = resident()
    return {
        "peak": after["VmHWM"] - before["VmRSS"],
        "shared": after["RssShmem"] - before["RssShmem"],
    }


def made(name: str, setting: Setting, work: Work, arguments: argparse.Namespace) -> Contender:
    if name == "torch":
        return with_torch(setting, work)
    return with_weft(setting, work, arguments.transport)


def resident() -> dict[str, int]:
    """Bytes by the names of /proc/self/status."""
    lines = [line.split() for line in (PROCESS / "status").read_text().split("\n")]
    return {line[0].rstrip(":"): int(line[1]) << 10 for line in lines if line[2:] == ["kB"]}


def row(arguments: argparse.Namespace, setting: Setting, watch: Watch) -> Row:
    """The worst rank of each contender, with the fewest and with the most microbatches."""
    facts: dict[str, list[dict[str, int]]] = {}
    peaks = []
    for name in ("torch", "weft"):
        for count in (arguments.microbatches[0], setting.microbatches):
            asked = setting._replace(microbatches=count)
            by_rank = facts[f"{name} {count}"] = run(partial(job, name), asked, arguments, watch)
            peaks.append(max(rank["peak"] for rank in by_rank) / MEBI)
    growth = peaks[3] - peaks[2]
    shared = max(rank["shared"] for rank in facts[f"weft {setting.microbatches}"]) / MEBI
    cells = [
        f"{peaks[0]:.1f} → {peaks[1]:.1f}",
        f"{peaks[2]:.1f} → {peaks[3]:.1f}",
        f"{growth:.1f}",
        f"{shared:.1f}",
        f"{TARGET} {'met' if growth < TARGET else 'missed'}",
    ]
    return Row(cells, facts)


if __name__ == "__main__":
    given = parsed(__doc__, ranks=(4,), microbatches=(16, 64), schedules=("interleaved-1f1b",))
    fewest, most = given.microbatches[0], given.microbatches[-1]
    rows = [setting for setting in settings(given) if setting.microbatches == most]
    spans = [f"{name} MiB, {fewest} → {most}" for name in ("torch", "weft")]
    reported(given, (*spans, "weft's growth", "weft, shared", "target"), rows, partial(row, given))

"""Weft over NCCL beside torch.distributed.pipelining over NCCL, in the same processes.

    python benchmarks/gpu/beside_torch.py [--layers 2] [--json FILE]
    python benchmarks/gpu/beside_torch.py --layers 16 --rows 1 [--json FILE]
    python benchmarks/gpu/beside_torch.py --device cpu --quick

Torch, Weft and the ranks alone take turns, step by step. What a transfer takes is measured before,
and shown as a part of a stage's forward: on one GPU NCCL goes through sockets, which are slow. With
more layers the forward is longer, with fewer rows the message is shorter.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from statistics import median as middle
from typing import Any

import torch
import torch.distributed as dist
from borrowed import (
    Estimate,
    Row,
    Watch,
    Work,
    alone,
    both,
    estimate,
    ideal_seconds,
    median,
    meet,
    reported,
    rounds,
    step_seconds,
)
from common import Setting, measured, parsed, settings, timing, work_of

from weft.ir.kinds import Kind
from weft.lower import unpaired

PINGS, WARM_UP = 10, 3
SHORT = 0.10  # of a forward
COLUMNS = (
    "transfer / F",
    "ideal ms",
    "torch ms",
    "weft ms",
    "weft / torch",
    "torch excess %",
    "weft excess %",
    "excess, weft / torch",
    "target",
)


# in a rank


def job(setting: Setting, arguments: argparse.Namespace, tell: Watch) -> dict[str, Any]:
    """What a transfer takes; then torch, Weft and the stages alone, in turn."""
    work = work_of(setting, arguments)
    taken = transfer(setting, work)
    turns = both(setting, work, setting.transport)  # type: ignore[arg-type]
    turns["alone"] = alone(setting, work, timing(arguments))  # type: ignore[arg-type]
    return {"transfer": taken, **rounds(turns, arguments.steps, tell)}


def transfer(setting: Setting, work: Work) -> float:
    """Seconds of a message from rank 0 to rank 1, by torch's own send and receive, and back."""
    rank, found = dist.get_rank(), []
    message = work.batch.chunk(setting.microbatches)[0].clone()
    for _ in range(WARM_UP + PINGS if rank < 2 else 0):
        start = time.monotonic()
        for source in (0, 1):
            dist.send(message, 1 - rank) if rank == source else dist.recv(message, 1 - rank)
        if message.is_cuda:
            torch.cuda.synchronize()
        found.append((time.monotonic() - start) / 2)
    meet()
    return middle(found[WARM_UP:]) if found else 0.0


# the report


def row(arguments: argparse.Namespace, setting: Setting, watch: Watch) -> Row:
    by_rank = measured(job, setting, arguments, watch)
    torchs, wefts = (step_seconds(by_rank, name) for name in ("torch", "weft"))
    least, ratio = ideal_seconds(setting, by_rank), median(wefts / torchs)
    message, own = by_rank[0]["transfer"], forward(setting, by_rank)
    share = message / own
    excesses = [estimate(lambda step, best: step / best - 1, one, least) for one in (torchs, wefts)]
    over = estimate(lambda one, other, best: (other - best) / (one - best), torchs, wefts, least)
    cells = [
        f"{share:.2f}",
        *(median(one).shown(1e3, 1) for one in (least, torchs, wefts)),
        ratio.shown(digits=3),
        *(one.shown(1e2, 1) for one in excesses),
        over.shown(),
        target(share, ratio, excesses[0], over),
    ]
    facts = {"transfer": message, "forward": own, "transfer / F": share, "weft / torch": ratio}
    facts |= {"excess": dict(zip(("torch", "weft"), excesses, strict=True)), "over": over}
    samples = {"ideal": least, "torch": torchs, "weft": wefts}
    return Row(cells, facts | {name: one.tolist() for name, one in samples.items()})


def target(share: float, ratio: Estimate, excess: Estimate, over: Estimate) -> str:
    """What is asked of a row: of the excess, where a transfer is short and torch has one to halve;
    else of the step."""
    is_halved = share <= SHORT and excess.value > 0
    name, found, most = ("excess", over, 0.5) if is_halved else ("step", ratio, 1.02)
    return f"{name} {most} {'met' if found.value <= most else 'missed'}"


def forward(setting: Setting, by_rank: list[dict[str, Any]]) -> float:
    """Seconds of a forward of a stage, while all ranks work."""
    program = unpaired(setting.program)
    found = []
    for index, lane in enumerate(program.lanes):
        kinds = [action.kind for action in program.lane(index)]
        for taken in by_rank[lane.device]["alone"]:
            found += [one for kind, one in zip(kinds, taken, strict=True) if kind is Kind.F]
    return middle(found)


if __name__ == "__main__":
    given = parsed(
        __doc__,
        schedules=("1f1b", "interleaved-1f1b"),
        transports=["nccl"],
        hidden=[2048],
        steps=12,
    )
    reported(given, COLUMNS, settings(given), partial(row, given))

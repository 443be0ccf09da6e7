"""The runtime on one GPU: exact against the reference, alone and by ranks that share the GPU.

    python benchmarks/gpu/check.py [--ranks 4] [--width 1024] [--json FILE]

Alone, every schedule must give the weights of the reference, bit for bit. Then ranks
share the GPU, each with a part of it where MPS runs, and pass messages through host memory; spans
come from events of the device, and a kernel of known length shows whether they are true.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

import weft
from weft.ir.program import Program
from weft.runtime.suit import is_asynchronous
from weft.runtime.weights.staleness import scoped
from weft.schedules import REGISTRY, Shape

GPU = torch.device("cuda", 0)
BY_RANKS = (
    "1f1b",
    "interleaved-1f1b",
    "zbv",
    "chimera",
    "dualpipev",
    "pipedream",
    "pipedream-2bw",
    "wpipe",
)
SPUN = 50_000_000  # cycles of a kernel that only waits


def program_of(name: str, devices: int) -> Program:
    least, most = REGISTRY[name].stages_per_device
    shape = Shape(
        devices=devices,
        microbatches=2 * devices,
        stages_per_device=least if most else 2,
        updates=2 * devices + 2,
    )
    return REGISTRY[name].program(shape)


def blocks(stages: int, width: int) -> list[nn.Module]:
    torch.manual_seed(0)
    made = [
        nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.Dropout(0.1), nn.GELU())
        for _ in range(stages)
    ]
    return [block.to(GPU) for block in made]


def batches(microbatches: int, width: int, steps: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn(2, 64 * microbatches, width, generator=generator) for _ in range(steps)]
    return [(both[0], both[1]) for both in drawn]


def adam(named: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([weight for _, weight in named], lr=1e-3)


def is_exact(program: Program, width: int) -> bool:
    """Whether what this process trains has the weights of the reference after some steps."""
    stages = blocks(program.stages, width)
    copies = [copy.deepcopy(stage) for stage in stages]
    settings: dict[str, Any] = {
        "loss": nn.functional.mse_loss,
        "optimizer": adam,
        "clip": 1.0,
        "seed": 3,
    }
    groups = scoped(program, None) if is_asynchronous(program) else None
    reference = weft.Reference(copies, program, groups=groups, **settings)
    pipeline = weft.Pipeline(stages, program, **settings)
    for batch, target in batches(program.microbatches, width, 6 if is_asynchronous(program) else 3):
        pipeline.step(batch, target)
        reference.step(batch.to(GPU), target.to(GPU))
    if is_asynchronous(program):
        pipeline.drain()
    return all(
        torch.equal(mine, theirs)
        for (_, stage), module in pipeline.modules.items()
        for mine, theirs in zip(module.parameters(), copies[stage].parameters(), strict=True)
    )


class Spin(nn.Module):
    """A stage that keeps the GPU busy for so many cycles, once."""

    def __init__(self, is_slow: bool) -> None:
        super().__init__()
        self.weight, self.is_slow = nn.Parameter(torch.ones(8, device=GPU)), is_slow

    def forward(self, value: Tensor) -> Tensor:
        if self.is_slow and not value.is_meta:
            torch.cuda._sleep(SPUN)
            self.is_slow = False
        return value * self.weight


def spun_alone() -> float:
    """Seconds of the kernel by itself."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(10):  # until the clock has its highest rate
        torch.cuda._sleep(SPUN)
    start.record()
    torch.cuda._sleep(SPUN)
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def spans() -> dict[str, float]:
    """The slow forward as recorded, the kernel alone, and the longest of all other spans."""
    program = REGISTRY["1f1b"](devices=4, microbatches=8)
    stages = [Spin(False) for _ in range(4)]
    pipeline = weft.Pipeline(stages, program, loss=nn.functional.mse_loss)
    data = torch.randn(16, 8)
    pipeline.step(data, data, update=False)
    alone = spun_alone()
    stages[2].is_slow = True
    timeline = pipeline.step(data, data, update=False).timeline
    lengths = sorted(timeline.end - timeline.start)
    return {"slow": lengths[-1], "alone": alone, "next": lengths[-2]}


def by_ranks(ranks: int, width: int) -> list[dict[str, Any]]:
    """The same schedules with a process for each device."""
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        spawn(_rank, args=(ranks, width, folder), nprocs=ranks)  # type: ignore[no-untyped-call]
        return [json.loads(line) for line in Path(folder, "found").read_text().splitlines()]


def _rank(rank: int, ranks: int, width: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks
    )
    for name in BY_RANKS:
        program = program_of(name, ranks)
        same = is_exact(program, width)
        agreed = [None] * ranks
        dist.all_gather_object(agreed, same)
        pipeline = weft.Pipeline(
            blocks(program.stages, width),
            program,
            loss=nn.functional.mse_loss,
            optimizer=lambda named: torch.optim.SGD([weight for _, weight in named], lr=0.0),
        )
        is_stale = is_asynchronous(program)
        for batch, target in batches(program.microbatches, width, 5):
            result = pipeline.step(batch, target, update=is_stale)
        timeline = pipeline.gathered(pipeline.drain() if is_stale else result)
        needs = timeline.program.dependencies
        early = (timeline.end[needs.producer] - timeline.start[needs.consumer]).max()
        found = {
            "schedule": name,
            "is_exact": all(agreed),
            "milliseconds": 1e3 * timeline.makespan / timeline.program.steps,
            "bubble": timeline.bubble.wall,
            "milliseconds_too_early": 1e3 * max(0.0, float(early)),
        }
        if rank == 0:
            with Path(folder, "found").open("a") as file:
                file.write(json.dumps(found) + "\n")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    names = [schedule.name for schedule in REGISTRY]
    found["alone"] = {name: is_exact(program_of(name, 4), arguments.width) for name in names}
    found["spans"] = spans()
    print(json.dumps(found, indent=1), flush=True)
    found["ranks"] = by_ranks(arguments.ranks, arguments.width)
    print(json.dumps(found["ranks"], indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

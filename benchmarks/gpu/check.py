"""The runtime on one GPU: exact against the reference, alone and by ranks that share the GPU.

    python benchmarks/gpu/check.py [--ranks 4] [--width 1024] [--transports peer shared]

Alone, every schedule must give the weights of the reference, bit for bit, and some also with what
runs on streams beside the computation. Then ranks share the GPU, each with a part of it where MPS
runs, over each transport. Spans come from events of the device,
and a kernel of known length shows whether they are true. Once a pipeline has taken its first
steps, torch reports any call that makes the host wait for the device: a step may make none.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import tempfile
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

import weft
from weft.ir.program import Program
from weft.lower import Amount, experts
from weft.runtime.stage.randomness import WATCHED
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


def is_exact(
    program: Program,
    width: int,
    transport: str = "auto",
    *,
    runs: Program | None = None,
    offload: Amount = "none",
    compress: Any = None,
) -> bool:
    """Whether what this process trains has the weights of the reference after some steps.

    runs  the program as the pipeline is given it, if it is cut into segments
    """
    stages = blocks(program.stages, width)
    copies = [copy.deepcopy(stage) for stage in stages]
    settings: dict[str, Any] = {
        "loss": nn.functional.mse_loss,
        "optimizer": adam,
        "clip": 1.0,
        "seed": 3,
        "compress": compress,
    }
    groups = scoped(program, None) if is_asynchronous(program) else None
    reference = weft.Reference(copies, program, groups=groups, **settings)
    carrier: Any = transport
    pipeline = weft.Pipeline(
        stages, runs or program, transport=carrier, offload=offload, **settings
    )
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


def beside(width: int) -> dict[str, bool]:
    """The same in one process with work beside the computation, and compressed messages."""
    found = {}
    for name in ("1f1b", "zbv", "kimi-k2", "dualpipev"):
        program = program_of(name, 4)
        for compress in (None, "fp8"):
            exact = partial(is_exact, program, width, compress=compress)
            found[f"{name}, offloaded, {compress}"] = exact(offload="all")
            if program.actions.joined.any():
                cut = experts(program)
                found[f"{name}, in segments, {compress}"] = exact(runs=cut)
                found[f"{name}, in segments, offloaded, {compress}"] = exact(
                    runs=cut, offload="all"
                )
    return found


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
    pipeline = weft.Pipeline(stages, program, loss=nn.functional.mse_loss, record=True)
    data = torch.randn(16, 8)
    pipeline.step(data, data, update=False)
    alone = spun_alone()
    stages[2].is_slow = True
    timeline = pipeline.step(data, data, update=False).timeline
    lengths = sorted(timeline.end - timeline.start)
    return {"slow": lengths[-1], "alone": alone, "next": lengths[-2]}


def by_ranks(ranks: int, width: int, transport: str) -> list[dict[str, Any]]:
    """The same schedules with a process for each device."""
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        words = ranks, width, folder, transport
        try:
            spawn(_rank, args=words, nprocs=ranks)  # type: ignore[no-untyped-call]
        except Exception as error:
            print(f"{transport}: {error}", flush=True)
        found = Path(folder, "found")
        return (
            [json.loads(line) for line in found.read_text().splitlines()] if found.exists() else []
        )


def _rank(rank: int, *words: Any) -> None:
    try:
        _try(rank, *words)
    except BaseException:
        print(f"rank {rank}: {traceback.format_exc()}", flush=True)
        raise


def _try(rank: int, ranks: int, width: int, folder: str, transport: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["NCCL_HOSTID"], os.environ["NCCL_SOCKET_IFNAME"] = f"host{rank}", "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks
    )
    for name in BY_RANKS:
        program = program_of(name, ranks)
        same = is_exact(program, width, transport)
        agreed = [None] * ranks
        dist.all_gather_object(agreed, same)
        pipeline = weft.Pipeline(
            blocks(program.stages, width),
            program,
            loss=nn.functional.mse_loss,
            optimizer=lambda named: torch.optim.SGD([weight for _, weight in named], lr=0.0),
            nonfinite="ignore",
            transport=transport,  # type: ignore[arg-type]
            record=True,
        )
        is_stale = is_asynchronous(program)
        for step, (batch, target) in enumerate(batches(program.microbatches, width, WATCHED + 4)):
            batch, target = batch.to(GPU), target.to(GPU)
            is_strict = step > WATCHED and transport != "shared"  # which goes through the host
            torch.cuda.set_sync_debug_mode("error" if is_strict else "default")
            try:
                result = pipeline.step(batch, target, update=is_stale)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        timeline = pipeline.gathered(pipeline.drain() if is_stale else result)
        needs = timeline.program.dependencies
        early = (timeline.end[needs.producer] - timeline.start[needs.consumer]).max()
        found = {
            "schedule": name,
            "transport": transport,
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
    parser.add_argument("--transports", nargs="*", default=["peer", "shared"])
    parser.add_argument("--schedules", nargs="*", help="alone; all where none is named")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    names = arguments.schedules or [schedule.name for schedule in REGISTRY]
    found["alone"] = {name: is_exact(program_of(name, 4), arguments.width) for name in names}
    found["beside"] = beside(arguments.width)
    found["spans"] = spans()
    print(json.dumps(found, indent=1), flush=True)
    found["ranks"] = []
    for transport in arguments.transports:
        found["ranks"] += by_ranks(arguments.ranks, arguments.width, transport)
    for row in found["ranks"]:
        print(json.dumps(row))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

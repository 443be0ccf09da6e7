"""Set-up as users do it, on the GPUs of this host: `weft train`, torchrun, an NCCL process group.

    python benchmarks/gpu/set_up.py [--ranks 2] [--only experts]
    python benchmarks/gpu/set_up.py --only shared  # where ranks meet by NCCL as well

Ranks share a GPU where there are fewer GPUs than ranks (start MPS first for more than two of them).
Prints a line for each check, and ends with status 1 if one fails.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from common import own_host
from torch import Tensor, nn

import weft
from weft.errors import InputError
from weft.schedules import one_f_one_b, zbv

EXAMPLE = Path(__file__).parents[2] / "examples" / "gpus.py"
SMALL = ["--steps", "5", "--dropout", "0.1", "--hidden", "256", "--context", "128"]
SCHEDULES = ("1f1b", "zbv", "wpipe")
ENOUGH = 300  # seconds for a command
CYCLES = 500_000_000  # of a GPU's clock, about a quarter of a second


def started(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=ENOUGH)


def losses(*words: str) -> list[float]:
    """What `weft train` prints for this job."""
    run = started(sys.executable, "-m", "weft", "train", *SMALL, "--json", *words)
    if run.returncode:
        raise RuntimeError(run.stderr.strip()[-2000:])
    found = json.loads(run.stdout.splitlines()[-1])
    print("   ", found.get("accelerator", "reference"), found["losses"][-1])
    return list(found["losses"])


def weft_train(schedule: str, ranks: int) -> bool:
    """Ranks on GPUs have the losses of the reference on a GPU."""
    more = ["--share-gpus"] if ranks > torch.cuda.device_count() else []
    job = ["--accelerator", "cuda", "--schedule", schedule, "-d", str(ranks), "-n", "4", *more]
    return losses(*job) == losses(*job, "--reference")


def experts(ranks: int) -> bool:
    """A mixture of experts by kimi-k2 with offload under torchrun: the losses of the reference."""
    more = ["--share-gpus"] if ranks > torch.cuda.device_count() else []
    job = ["--model", "moe-small", "--schedule", "kimi-k2", "-d", str(ranks), "-n", "4"]
    job += ["--steps", "5", "--accelerator", "cuda", *more, "--json"]
    wanted = started(sys.executable, "-m", "weft", "train", *job, "--reference")
    if wanted.returncode:
        raise RuntimeError(wanted.stderr.strip()[-2000:])
    found = [
        torchrun(ranks, "-m", "weft", "train", *job, "--offload", amount)
        for amount in ("none", "auto")
    ]
    losses = [json.loads(text.splitlines()[-1])["losses"] for text in (wanted.stdout, *found)]
    print("   ", *(one[-1] for one in losses))
    return losses[0] == losses[1] == losses[2]


def shared_experts(ranks: int) -> bool:
    """Ranks that share experts by NCCL's all-to-all: the losses of the reference."""
    found, wanted = by_library(
        "--model", "moe-small", "--schedule", "kimi-k2", "--expert-ranks", "2"
    )
    return found == wanted


def shared_sums(ranks: int) -> bool:
    """Replicas whose gradients NCCL sums: the losses of the reference but for rounding."""
    found, wanted = by_library("--schedule", "zbv", "--replicas", "2", "--reduce", "library")
    return all(math.isclose(*pair, rel_tol=1e-4) for pair in zip(found, wanted, strict=True))


def by_library(*words: str) -> tuple[list[float], list[float]]:
    """Losses of twice two ranks that meet by NCCL as well, and of the reference."""
    job = [*words, "-d", "2", "-n", "4", "--steps", "5", "--accelerator", "cuda", "--json"]
    more = ["--share-gpus"] if torch.cuda.device_count() < 4 else []
    wanted = started(sys.executable, "-m", "weft", "train", *job, *more, "--reference")
    if wanted.returncode:
        raise RuntimeError(wanted.stderr.strip()[-2000:])
    found = torchrun(4, __file__, "--as-host", "train", *job, *more)
    both = [json.loads(text.splitlines()[-1])["losses"] for text in (found, wanted.stdout)]
    print("   ", *(one[-1] for one in both))
    return both[0], both[1]


def as_host(words: list[str]) -> None:
    """Run weft in a rank that NCCL takes to be on a host of its own: it refuses a shared GPU."""
    if torch.cuda.device_count() < int(os.environ["WORLD_SIZE"]):
        os.environ |= own_host(int(os.environ["RANK"]))
    sys.argv = ["weft", *words]
    runpy.run_module("weft", run_name="__main__")


def too_many_ranks(ranks: int) -> bool:
    """More ranks than GPUs are refused where nobody asked for it."""
    count = torch.cuda.device_count() + 1
    run = started(sys.executable, "-m", "weft", "train", "--accelerator", "cuda", "-d", str(count))
    print("   ", run.stderr.strip())
    return run.returncode == 2 and "--share-gpus" in run.stderr


def torchrun(ranks: int, *words: str) -> str:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    run = started(sys.executable, *launcher, *words)
    if run.returncode:
        raise RuntimeError(
            (run.stdout + run.stderr).strip()[:3000]
        )  # torchrun's own words are last
    return run.stdout


def example(ranks: int) -> bool:
    """examples/gpus.py on as many GPUs as there are."""
    lines = torchrun(torch.cuda.device_count(), str(EXAMPLE)).splitlines()
    found = [float(line.split()[-1]) for line in lines if line.startswith("step ")]
    print("   ", found[0], found[-1])
    return len(found) == 10 and found[-1] < found[0]


def groups(ranks: int) -> bool:
    """Process groups of NCCL alone, and of both, over peer; see `in_a_rank`."""
    alone = losses_of(None, ranks, "loopback")
    with tempfile.TemporaryDirectory() as folder:
        for backend in ("nccl", "cpu:gloo,cuda:nccl"):
            torchrun(ranks, __file__, "--rank", backend, folder)
            for found in Path(folder).iterdir():
                if json.loads(found.read_text()) != alone:
                    print("   ", backend, found.name, found.read_text(), alone)
                    return False
    return True


def in_a_rank(backend: str, folder: str) -> None:
    """Trains with the stages of this rank alone on its GPU; refusals come with their reasons."""
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local % torch.cuda.device_count())
    dist.init_process_group(backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    Path(folder, str(rank)).write_text(json.dumps(losses_of(rank, ranks, "auto")))
    if ranks > torch.cuda.device_count():
        refused("are on one GPU", lambda: losses_of(rank, ranks, "nccl"))
    if backend == "nccl":
        refused("are on the CPU", lambda: losses_of(-1, ranks, "auto"))
    dist.destroy_process_group()


def ends(ranks: int) -> bool:
    """Scripts that end once all is launched, without a word: others still get what was sent."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for transport in ("loopback", "peer", "nccl"):
            count = ranks if transport != "loopback" else 1
            torchrun(count, __file__, "--end", transport, folder, str(ranks))
            found[transport] = Path(folder, transport).read_text()
    print("   ", found)
    return len({*found.values()}) == 1


class Slow(torch.autograd.Function):
    """A backward that takes a while, in which its host gets far ahead."""

    @staticmethod
    def forward(context: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
        return gradients[0] + 0


class SlowBackward(nn.Linear):
    def forward(self, value: Tensor) -> Any:
        return Slow.apply(super().forward(value))  # type: ignore[no-untyped-call]


def end_at_once(transport: str, folder: str, stages: int) -> None:
    """Trains a little, and ends; the first rank waits for its device, and says what it has."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ |= own_host(rank)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    with torch.device("cuda"):
        kinds = [nn.Linear, *[SlowBackward] * (stages - 1)]
        blocks = [kind(256, 256) for kind in kinds]
    pipeline = weft.Pipeline(
        blocks,
        one_f_one_b(devices=stages, microbatches=4),
        loss=nn.functional.mse_loss,
        optimizer=lambda named: torch.optim.SGD([weight for _, weight in named], lr=0.1),
        nonfinite="ignore",  # no host waits for its device
        transport="loopback" if ranks == 1 else transport,  # type: ignore[arg-type]
    )
    drawn = torch.Generator().manual_seed(1)
    for _ in range(3):
        pipeline.step(*torch.randn(2, 64, 256, generator=drawn))
    if rank == 0:
        Path(folder, transport).write_text(float(blocks[0].weight.double().sum()).hex())


def refused(reason: str, call: Callable[[], object]) -> None:
    try:
        call()
    except InputError as error:
        if reason in str(error):
            return
        raise
    raise RuntimeError(f"not refused: {reason}")


def losses_of(rank: int | None, ranks: int, transport: str) -> list[str]:
    """Losses, with the stages of a rank on its GPU (all of them for None), and the rest on CPUs."""
    program = zbv(devices=ranks, microbatches=4)
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(256, 256), nn.Dropout(0.1)) for _ in range(program.stages)]
    for block, device in zip(blocks, program.placement.pipes[0], strict=True):
        if rank is None or device == rank:
            block.to("cuda")
    drawn = torch.Generator().manual_seed(1)
    with weft.Pipeline(
        blocks,
        program,
        loss=nn.functional.mse_loss,
        optimizer=lambda named: torch.optim.AdamW([weight for _, weight in named]),
        clip=1.0,
        transport=transport,  # type: ignore[arg-type]
    ) as pipeline:
        steps = [pipeline.step(*torch.randn(2, 64, 256, generator=drawn)) for _ in range(4)]
        return [float(step.loss).hex() for step in steps]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", default="", help="checks with this in their names")
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--end", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--as-host", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_host:
        as_host(arguments.as_host)
        return
    if arguments.end:
        transport, folder, stages = arguments.end
        end_at_once(transport, folder, int(stages))
        return
    if arguments.rank:
        in_a_rank(*arguments.rank)
        return
    checks: dict[str, Callable[[int], bool]] = {
        f"weft train, {name}": lambda ranks, name=name: weft_train(name, ranks)  # type: ignore[misc]
        for name in SCHEDULES
    }
    checks |= {
        "experts": experts,
        "shared experts": shared_experts,
        "shared sums": shared_sums,
        "too many ranks": too_many_ranks,
        "examples/gpus.py": example,
        "groups": groups,
        "ends": ends,
    }
    checks = {name: check for name, check in checks.items() if arguments.only in name}
    is_good = True
    for name, check in checks.items():
        try:
            passed = check(arguments.ranks)
        except Exception as error:
            passed = False
            print("   ", error)
        is_good &= passed
        print("ok    " if passed else "FAILED", name, flush=True)
    sys.exit(not is_good)


if __name__ == "__main__":
    main()

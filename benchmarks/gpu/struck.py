"""One rank of a job in which something happens to one of them; `kills.py` starts it.

    python benchmarks/gpu/struck.py JOB RANK FOLDER

JOB is a `Job` in JSON; FOLDER is where its ranks meet, and where the one that is struck says when.
It ends as a user's script would: by the error that nobody catches, and all that comes after it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

import weft
from weft.ir.program import Program
from weft.schedules import REGISTRY, Shape

WIDTH, ROWS, MICROBATCHES = 256, 16, 6
STEPS = 50  # at most, until it happens
REASON = "struck on purpose"


class Job(NamedTuple):
    """What happens to which rank, at which of its forwards and backwards; and where."""

    kind: str
    victim: int
    call: int
    schedule: str
    ranks: int
    device: str
    transport: str
    backend: str
    deadline: float

    @property
    def program(self) -> Program:
        least, most = REGISTRY[self.schedule].stages_per_device
        return REGISTRY[self.schedule].program(
            Shape(
                devices=self.ranks,
                microbatches=MICROBATCHES,
                stages_per_device=least if most else 2,
            )
        )


def note(file: Path, what: str) -> None:
    """Write down what happens now; the file is there with all of it, or not at all."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps({"when": time.monotonic(), "what": what}))
    part.rename(file)


class Strike:
    """Counts the calls of this rank's stages, once armed, and does it at the one that is asked."""

    def __init__(self, job: Job, mark: Path) -> None:
        self._job, self._mark, self._calls, self.is_armed = job, mark, 0, False

    def __deepcopy__(self, _: Any) -> Strike:
        return self  # copies of a stage count together

    def call(self, what: str) -> None:
        if not self.is_armed:
            return
        self._calls += 1
        if self._calls - 1 == self._job.call:
            note(self._mark, what)
            KINDS[self._job.kind]()


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise() -> None:
    raise RuntimeError(REASON)


def _stall() -> None:
    while True:
        time.sleep(60)


KINDS = {"kill": _kill, "raise": _raise, "stall": _stall}


class Stage(nn.Module):
    """Two layers, whose forward and backward may be struck."""

    def __init__(self, strike: Strike | None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self._strike = strike

    def forward(self, value: Tensor) -> Tensor:
        hidden: Tensor = self.first(value)
        if self._strike is not None and not isinstance(value, FakeTensor):  # asks for shapes alone
            self._strike.call("forward")
            if hidden.requires_grad:
                hidden.register_hook(self._backward)
        out: Tensor = self.second(nn.functional.gelu(hidden))
        return out

    def _backward(self, _: Tensor) -> None:
        assert self._strike is not None
        self._strike.call("backward")


def main(job: Job, rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if job.device == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    store = f"file://{folder}/store"
    dist.init_process_group(job.backend, init_method=store, rank=rank, world_size=job.ranks)
    strike = Strike(job, folder / "struck") if rank == job.victim else None
    torch.manual_seed(0)
    pipeline = weft.Pipeline(
        [Stage(strike).to(device) for _ in range(job.program.stages)],
        job.program,
        loss=nn.functional.mse_loss,
        optimizer=lambda named: torch.optim.SGD([weight for _, weight in named], lr=1e-3),
        deadline=job.deadline,
        transport=job.transport,  # type: ignore[arg-type]
    )
    data = torch.randn(MICROBATCHES * ROWS, WIDTH, device=device)
    for step in range(STEPS):
        if strike is not None:  # a first step may take longer than the deadline
            strike.is_armed = step > 0 or job.kind != "stall"
        pipeline.step(data, data)
    raise SystemExit(f"nothing has happened in {STEPS} steps")


if __name__ == "__main__":
    given, own, where = sys.argv[1:]
    try:
        main(Job(**json.loads(given)), int(own), Path(where))
    finally:  # what comes now may wait for the device
        note(Path(where, f"{own}-raised"), "error")

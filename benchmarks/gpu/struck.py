"""One rank of a job in which something happens to one of them; `kills.py` starts it.

    python benchmarks/gpu/struck.py JOB RANK FOLDER
    python benchmarks/gpu/struck.py JOB reader FOLDER      # goes on from the last save, alone

JOB is a `Job` in JSON; FOLDER is where its ranks meet, and where the one that is struck says when.
It ends as a user's script would: by the error that nobody catches, and all that comes after it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from borrowed import REASON, Strike, fail, kill, note
from common import seem_on_two_hosts
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

import weft
from weft.ir.program import Program
from weft.runtime.saves import folder_of, newest
from weft.schedules import REGISTRY, Shape

__all__ = ["KINDS", "PHASES", "READER", "REASON", "Job"]

READER, SAVES = "reader", "saves"
WIDTH, ROWS, MICROBATCHES = 256, 16, 6
STEPS = 20  # of the phase, at most


class Job(NamedTuple):
    """What happens to which rank, at which moment of which phase; and where.

    A moment is a call of the user's code, or, in a save, of a function of Weft.
    """

    kind: str
    victim: int
    call: int
    schedule: str
    ranks: int
    device: str
    transport: str
    backend: str
    deadline: float
    phase: str = "steps"

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

    @property
    def moments(self) -> int:
        """About how many of them the phase has."""
        held = len(self.program.placement.held[self.victim])
        return {"start-up": 1 + 3 * held, "steps": 2 * held * MICROBATCHES, "save": 300}[self.phase]


PHASES = {"start-up": "user", "steps": "user", "save": "weft"}  # and whose calls are its moments


def _stall() -> None:
    while True:
        time.sleep(60)


KINDS = {"kill": kill, "raise": fail, "stall": _stall}


class Stage(nn.Module):
    """Two layers, whose forward and backward may be struck."""

    def __init__(self, strike: Strike) -> None:
        super().__init__()
        strike.user("the making of a stage")
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self._strike = strike

    def forward(self, value: Tensor) -> Tensor:
        hidden: Tensor = self.first(value)
        if not isinstance(value, FakeTensor):  # which asks for shapes alone
            self._strike.user("forward")
            if hidden.requires_grad:
                hidden.register_hook(lambda _: self._strike.user("backward"))
        out: Tensor = self.second(nn.functional.gelu(hidden))
        return out


def _here(job: Job, rank: int) -> torch.device:
    """The device of a rank, and of all that it makes."""
    torch.set_num_threads(1)
    if job.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def main(job: Job, rank: int, folder: Path) -> None:
    device, store = _here(job, rank), f"file://{folder}/store"
    if job.transport == "mixed":
        seem_on_two_hosts(rank, job.ranks)
    dist.init_process_group(job.backend, init_method=store, rank=rank, world_size=job.ranks)
    dist.all_reduce(torch.zeros(1))  # all are there: torch itself would wait long for who is not
    phase = job.phase if rank == job.victim else None
    strike = Strike(phase, PHASES[job.phase], job.call, KINDS[job.kind], folder / "struck")
    with strike.phase("start-up"):
        strike.user("all that comes before the pipeline")
        pipeline = _pipeline(job, strike, device, job.transport)
    data = torch.randn(MICROBATCHES * ROWS, WIDTH, device=device)
    if job.kind == "stall" or job.phase == "save":  # a first step may take longer than the deadline
        pipeline.step(data, data)
    with strike.phase("steps"):
        for _ in range(1 if job.phase == "save" else STEPS):
            pipeline.step(data, data)
    if job.phase == "save":
        _save(pipeline, strike, folder)
    pipeline.step(data, data)
    raise SystemExit("nothing has happened")


def _pipeline(job: Job, strike: Strike, device: torch.device, transport: str) -> weft.Pipeline:
    def optimizer(named: Any) -> torch.optim.Optimizer:
        strike.user("the making of an optimizer")
        return torch.optim.SGD([weight for _, weight in named], lr=1e-3)

    torch.manual_seed(0)
    return weft.Pipeline(
        [Stage(strike).to(device) for _ in range(job.program.stages)],
        job.program,
        loss=nn.functional.mse_loss,
        optimizer=optimizer,
        deadline=job.deadline,
        first_deadline=job.deadline if job.phase == "start-up" else 1800.0,
        transport=transport,  # type: ignore[arg-type]
    )


def _save(pipeline: weft.Pipeline, strike: Strike, folder: Path) -> None:
    """One save that is complete, and another that may be struck."""
    pipeline.save(folder_of(folder / SAVES, 1), extra={"number": 1})
    with strike.phase("save"):
        pipeline.save(folder_of(folder / SAVES, 2), extra={"number": 2})


def read(job: Job, folder: Path) -> None:
    """Go on from the last complete save, in one process."""
    device, strike = _here(job, 0), Strike(None, "user", 0, kill, folder)
    found = newest(folder / SAVES)
    if found is None:
        raise SystemExit("no save is complete")
    pipeline = _pipeline(job, strike, device, "loopback")
    number = pipeline.load(found)["number"]
    if found != folder_of(folder / SAVES, number):
        raise SystemExit(f"{found} has what was saved as {number}")
    data = torch.randn(MICROBATCHES * ROWS, WIDTH, device=device)
    pipeline.step(data, data)


if __name__ == "__main__":
    given, own, where = sys.argv[1:]
    if own == READER:
        read(Job(**json.loads(given)), Path(where))
        sys.exit()
    try:
        main(Job(**json.loads(given)), int(own), Path(where))
    finally:  # what comes now may wait for the device
        note(Path(where, f"{own}-raised"), "error")

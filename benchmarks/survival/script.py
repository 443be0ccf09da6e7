"""The script of every rank: it trains, evaluates, drains and ends as a user's would.

One rank is struck in one phase. Nothing here catches what follows: a rank ends by the error that
reaches the interpreter, and by all that comes after it.
"""

from __future__ import annotations

import datetime
import faulthandler
import gc
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hosts
import torch
import torch.distributed as dist
from cases import READER, STEPS, Case
from strikes import KINDS, Strike, interrupt, note
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import weft
from weft.runtime.saves import clean, folder_of, newest

SAVES = "saves"
WIDTH = 8
PATIENCE = datetime.timedelta(seconds=60)  # of torch's own group, until all ranks have joined
PORT = 29500


class Stage(nn.Module):
    """A layer whose forward and backward are moments."""

    def __init__(self, strike: Strike) -> None:
        super().__init__()
        self.line, self._strike = nn.Linear(WIDTH, WIDTH), strike

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.line(value)
        if not isinstance(value, FakeTensor) and not value.is_meta:  # which ask for shapes alone
            self._strike.user("a forward")
            if out.requires_grad:
                out.register_hook(lambda _: self._strike.user("a backward"))
        return out


class Descent(torch.optim.SGD):
    """Whose steps are moments."""

    strike: Strike

    def step(self, *_: Any) -> None:  # type: ignore[override]
        self.strike.user("an update")
        super().step()


def pipeline_of(case: Case, strike: Strike, **settings: Any) -> weft.Pipeline:
    def stage() -> Stage:
        strike.user("the making of a stage")
        return Stage(strike)

    def optimizer(named: Any) -> Descent:
        strike.user("the making of an optimizer")
        made = Descent([weight for _, weight in named], lr=1e-3)
        made.strike = strike
        return made

    def loss(output: Tensor, target: Tensor) -> Tensor:
        strike.user("a loss")
        return nn.functional.mse_loss(output, target)

    program = case.program
    return weft.Pipeline(
        [stage] * program.stages,
        program,
        loss=loss,
        optimizer=optimizer,
        clip=1.0,
        deadline=case.deadline,
        first_deadline=case.deadline,
        **settings,
    )


def main(case: Case, rank: int, folder: Path) -> None:
    """All phases, in order."""
    strike = _strike(case, rank, folder)
    mesh = _joined(case, rank, folder)
    with strike.phase("start-up"), strike.phase("connecting"):
        strike.user("all that comes before the pipeline")
        transport = "auto" if case.transport == "hosts" else case.transport
        pipeline = pipeline_of(case, strike, transport=transport, mesh=mesh)
    share = pipeline.program.microbatches // case.replicas  # which a replica is given
    batch = torch.randn(share * case.rows, WIDTH)
    with strike.phase("steps"):
        for _ in range(STEPS):
            float(pipeline.step(batch, batch).loss)
    with strike.phase("evaluation"):
        pipeline.evaluate(_loader(batch, strike))
        pipeline.predict(batch, everywhere=True)
    pipeline.step(batch, batch)
    if pipeline.is_asynchronous:
        with strike.phase("drain"):
            pipeline.drain()
    if case.phase == "save":
        _save(case, strike, pipeline, folder)
    for _ in range(2):  # after which every rank has read what every other sent
        float(pipeline.step(batch, batch).loss)
    if pipeline.is_asynchronous:
        pipeline.drain()
    if case.phase == "exit" and case.number % 4 > 1:
        pipeline.save(folder_of(folder / SAVES, 1), extra={"number": 1}, wait=False)
    with strike.phase("exit"):
        if case.number % 2:
            pipeline.close()
        del pipeline  # which closes it as well
        gc.collect()
        if case.number % 4 == 1:
            dist.destroy_process_group()


def _save(case: Case, strike: Strike, pipeline: weft.Pipeline, folder: Path) -> None:
    """A save that is complete, and another one, for which half of the scripts wait."""
    run = folder / SAVES
    pipeline.save(folder_of(run, 1), extra={"number": 1})
    with strike.phase("save"):
        pipeline.save(folder_of(run, 2), extra={"number": 2}, wait=case.number % 2 == 0)


def read(case: Case, folder: Path) -> None:
    """Go on from the last complete save, alone, and leave nothing but complete ones."""
    strike, run = Strike(None, "user", 0, KINDS["kill"], folder), folder / SAVES
    found = newest(run)
    if found is None:
        raise SystemExit("no save is complete")
    clean(run)
    pipeline = pipeline_of(case, strike, transport="loopback")
    number = pipeline.load(found)["number"]
    if {folder_of(run, one) for one in range(1, number + 1)} != {*run.iterdir()}:
        raise SystemExit(f"save {number} is the newest of {sorted(run.iterdir())}")
    batch = torch.randn(pipeline.program.microbatches, WIDTH)
    pipeline.step(batch, batch)


def _loader(batch: Tensor, strike: Strike) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(2):
        strike.user("the reading of a batch")
        yield batch, batch


def _strike(case: Case, rank: int, folder: Path) -> Strike:
    phase = case.phase if rank == case.victim else None
    acts = {**KINDS, "cut": hosts.cut}
    if case.place == "weft":
        acts["raise"] = interrupt  # as the handler of a signal does, anywhere
    act = acts[case.kind]
    return Strike(phase, case.place, case.moment, act, folder / "struck")


def _joined(case: Case, rank: int, folder: Path) -> DeviceMesh | None:
    """Join the others by torch, whose own waits are no part of this; a mesh, if of replicas."""
    is_far = case.transport == "hosts"
    os.environ["GLOO_SOCKET_IFNAME"] = hosts.WIRE if is_far else hosts.LOOPBACK
    place = f"tcp://10.0.0.1:{PORT}" if is_far else f"file://{folder}/store"
    dist.init_process_group(
        "gloo", init_method=place, rank=rank, world_size=case.ranks, timeout=PATIENCE
    )
    dist.barrier()
    mesh = None
    if case.replicas > 1:
        shape = case.replicas, case.ranks // case.replicas
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "pp"))
    _leave_torch(case, rank, folder)
    return mesh


def _leave_torch(case: Case, rank: int, folder: Path) -> None:
    """Wait until no rank is left in a wait of torch's, which a link that is cut would not end."""
    (folder / f"joined-{rank}").touch()
    end = time.monotonic() + PATIENCE.total_seconds()
    while not all((folder / f"joined-{one}").exists() for one in range(case.ranks)):
        if time.monotonic() > end:
            raise TimeoutError("not all ranks have joined")
        time.sleep(0.01)


# from the server


def enter(rank: int, folder: Path, host: str | None) -> None:
    """Make this process, just forked, one that writes into a folder of the case alone."""
    os.setsid()
    with (folder / f"{rank}.txt").open("wb") as file, Path(os.devnull).open("rb") as nothing:
        for number, opened in enumerate((nothing, file, file)):
            os.dup2(opened.fileno(), number)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    os.environ["TMPDIR"] = str(folder / "tmp")
    os.chdir(folder / "work")
    if host is not None:
        hosts.enter(host)
        hosts.keep_shared_memory_in(folder / "shm")


def run(case: Case, rank: int, folder: Path) -> None:
    """The script, and when it was over."""
    try:
        if rank == READER:
            read(case, folder)
        else:
            main(case, rank, folder)
    except BaseException:
        note(folder / f"{rank}-raised", "error")
        raise

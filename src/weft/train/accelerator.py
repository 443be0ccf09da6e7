"""Accelerators: what the ranks of a job compute on, and which GPU each of them has.

    4 GPUs   rank 0 1 2 3     one for each
    1 GPU    rank 0 1 2 3     only where ranks may share it, best by MPS with a quarter each

What is asked for is decided by numbers alone; `Seat.take` is what touches a GPU.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import torch
import torch.distributed as dist

from weft.errors import InputError

MPS_SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
FIXED = ":4096:8"  # the workspace with which cuBLAS computes the same on every stream
CPU = torch.device("cpu")


def chosen(asked: str, *, ranks: int, gpus: int, is_sharing: bool) -> str:
    """`cpu` or `cuda`, for as many ranks and GPUs of a host; InputError where that cannot be."""
    if asked == "cpu":
        if is_sharing:
            raise InputError("--share-gpus: this run is on the CPU; give --accelerator cuda")
        return "cpu"
    if gpus and (is_sharing or ranks <= gpus):
        return "cuda"
    if asked == "auto":
        return "cpu"
    if not gpus:
        raise InputError(
            f"--accelerator cuda: torch {torch.__version__} sees no GPU here; see what nvidia-smi"
            f" lists and that torch was built with CUDA, or use --accelerator cpu"
        )
    raise InputError(
        f"--accelerator cuda: {ranks} ranks for {_counted(gpus, 'GPU')}, and each rank needs one;"
        f" use -d {gpus}, or let ranks share GPUs with --share-gpus (start MPS for that:"
        f" nvidia-cuda-mps-control -d)"
    )


class Seat(NamedTuple):
    """One of the ranks of a host, and how many GPUs there are for them."""

    rank: int
    ranks: int
    gpus: int

    @property
    def gpu(self) -> int:
        """The number of its GPU."""
        return self.rank % self.gpus

    @property
    def share(self) -> int | None:
        """The percentage of a GPU that it gets, where several ranks have one."""
        return 100 // -(-self.ranks // self.gpus) if self.ranks > self.gpus else None

    def take(self) -> torch.device:
        """Compute on its GPU from now on, the same every time; before CUDA has started."""
        settings = {WORKSPACE: FIXED}
        if self.share is not None:
            settings[MPS_SHARE] = str(self.share)
        for name, value in settings.items():
            os.environ.setdefault(name, value)  # noqa: TID251 (CUDA reads it nowhere else)
        torch.cuda.set_device(self.gpu)
        torch.use_deterministic_algorithms(mode=True)
        # nothing is read before it is written, and each fill would be a kernel
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        return torch.device("cuda", self.gpu)


def taken(accelerator: str, ranks: int) -> torch.device:
    """Where this process computes, as one of this many ranks; a GPU is the current one then."""
    return CPU if accelerator == "cpu" else seat(ranks).take()


def seat(ranks: int) -> Seat:
    """This process among the ranks of its host; a job has as many, unless torchrun says so."""
    gpus = torch.cuda.device_count()
    if dist.is_available() and dist.is_torchelastic_launched():
        given = os.environ  # noqa: TID251 (as torchrun says it)
        return Seat(int(given["LOCAL_RANK"]), int(given["LOCAL_WORLD_SIZE"]), gpus)
    is_rank = dist.is_available() and dist.is_initialized()
    return Seat(dist.get_rank() if is_rank else 0, ranks, gpus)


def described(accelerator: str, ranks: int) -> str:
    """What a job of this many ranks computes on, in words."""
    if accelerator == "cpu":
        return "CPU"
    _, here, gpus = seat(ranks)
    name = torch.cuda.get_device_name()
    return f"{name}, {_counted(here, 'rank')} on {_counted(min(here, gpus), 'GPU')}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"

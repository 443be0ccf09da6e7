"""Places: on which device a rank computes, and whether the ranks of a run can do so together."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from weft.errors import InputError


def is_alone(carrier: str) -> bool:
    """Whether this process runs all devices."""
    return carrier == "loopback" or not (dist.is_available() and dist.is_initialized())


def place_of(stages: Sequence[nn.Module], held: Collection[int]) -> torch.device:
    """The device of the stages that a process holds; those of others may be anywhere.

    Where these have no weights, it is that of the first weight of all.
    """
    found = {index: device for index in held if (device := _device_of(stages[index]))}
    first = next(iter(found), None)
    if first is None:
        others = (device for stage in stages if (device := _device_of(stage)))
        return next(others, torch.device("cpu"))
    for index, device in found.items():
        if device != found[first]:
            raise InputError(
                f"stage {first} is on {found[first]} and stage {index} on {device}, and one"
                f" process runs both; move the stages of a process to one device"
            )
    return found[first]


def real(device: torch.device) -> torch.device:
    """The device itself; for what is on meta, the one where it is made.

    That is the current GPU in a process group of GPUs, else where torch makes tensors.
    """
    if device.type != "meta":
        return device
    found = torch.get_default_device()
    if found.type in ("cpu", "meta") and dist.is_available() and dist.is_initialized():
        found = torch.device("cuda" if "nccl" in dist.get_backend() else "cpu")
    place = torch.device("cpu") if found.type == "meta" else found
    return torch.empty(0, device=place).device  # with its index


def _device_of(stage: nn.Module) -> torch.device | None:
    return next((weight.device for weight in stage.parameters()), None)


def current(device: torch.device) -> AbstractContextManager[Any]:
    """Where a GPU is the current one, as streams and events are made on that."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def current_device() -> torch.device:
    """The GPU that is current in this thread, for one that it starts: that begins on the first."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def refuse_idle_gpus(device: torch.device, backend: str) -> None:
    """Refuse stages that were left on the CPU, where the process group is one of GPUs."""
    if device.type == "cpu" and backend == "nccl":
        raise InputError(
            "the process group is one of GPUs (nccl), but the stages of this rank are on the CPU;"
            " move them with stage.to('cuda'), or, to train on CPUs, make the group with 'gloo' or"
            " say transport='shared' or 'gloo'"
        )


def refuse_shared_gpus(names: Sequence[str]) -> None:
    """Refuse ranks that have one GPU between them, by the names of all; NCCL cannot serve them."""
    first: dict[str, int] = {}
    for rank, name in enumerate(names):
        other = first.setdefault(name, rank)
        if other != rank:
            raise InputError(
                f"transport='nccl': ranks {other} and {rank} are on one GPU, and NCCL needs one for"
                f" each rank; call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before"
                f" stages are moved to 'cuda', or, to share a GPU on one host, use transport='peer'"
            )


def name_for_nccl(identity: str) -> str:
    """A GPU by the name under which NCCL knows it: with its host, which a user may have renamed."""
    host = os.environ.get("NCCL_HOSTID", "")  # noqa: TID251 (as NCCL reads it)
    return f"{host} {identity}"

"""Where modules are made and run: on torch's default device, by kernels that compute alike."""

from __future__ import annotations

import os

import torch

PLACES = ("cpu", "cuda")
WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def here() -> str:
    """The type of the device that things are made on."""
    return torch.get_default_device().type


def run_on(place: str) -> None:
    """Make what is made from now on there; to be called before CUDA starts."""
    if place == "cpu":
        return
    os.environ.setdefault(*WORKSPACE)
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.enable_mem_efficient_sdp(False)  # it has no deterministic backward
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.set_default_device(place)


def rank_on(place: str, rank: int) -> None:
    """The same in a rank, which NCCL takes to be on a host of its own."""
    if place != "cpu":
        os.environ |= {"NCCL_HOSTID": f"host{rank}", "NCCL_SOCKET_IFNAME": "lo"}
    run_on(place)

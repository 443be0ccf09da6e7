"""The link to the host: how fast what is offloaded leaves a device.

Where no cost says so, a short copy does; where nothing is known at all, what a stage saves is taken
to leave in as long as its forward takes. On a GPU of today that is so from a few thousand hidden
units on: the work for a token grows faster with them than what is kept of it.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from weft.cost import Cost, Link, Share
from weft.ir.program import Program

COPIED = 1 << 25  # bytes
TRIES = 3


def assumed(program: Program) -> Cost:
    """Unit costs, by which both ways of what a stage saves take as long as its forward each."""
    unit = Share().cost(program)
    bandwidth = unit.memory.saved[0] / unit.times.forward[0]
    return replace(unit, network=replace(unit.network, host=Link(bandwidth=bandwidth)))


def linked(cost: Cost | None, device: torch.device) -> Cost | None:
    """A cost that knows the link of a device to its host: by a short copy, where it did not."""
    if cost is None or cost.network.host.bandwidth != float("inf"):
        return cost
    link = Link(bandwidth=_bandwidth(device))
    return replace(cost, network=replace(cost.network, host=link))


def _bandwidth(device: torch.device) -> float:
    """Bytes in a second, of the fastest of some copies."""
    is_gpu = device.type == "cuda"
    source = torch.zeros(COPIED, dtype=torch.uint8, device=device)
    host = torch.empty(COPIED, dtype=torch.uint8, pin_memory=is_gpu)
    seconds = []
    for _ in range(TRIES):
        if is_gpu:
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        host.copy_(source)
        seconds.append(time.perf_counter() - began)
    return COPIED / max(min(seconds), 1e-9)

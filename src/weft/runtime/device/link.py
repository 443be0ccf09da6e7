"""The link to the host: how fast what is offloaded leaves a device.

Where no cost says so, short copies of all ranks at once do, as ranks of a host may share its links;
where nothing is known at all, what a stage saves is taken to leave in as long as its forward takes.
On a GPU of today that is so from a few thousand hidden units on: the work for a token grows faster
with them than what is kept of it.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from weft.cost import Cost, Link, Share
from weft.ir.program import Program

COPIED = 1 << 25  # bytes of a copy
COPIES = 8  # one after the other
CAUTION = 1.25  # times as long: what copies are given, as a device computes beside them
NUMBER = struct.Struct("d")

Meeting: TypeAlias = Callable[[bytes, str], list[bytes]]


def assumed(program: Program) -> Cost:
    """Unit costs, by which both ways of what a stage saves take as long as its forward each."""
    unit = Share().cost(program)
    bandwidth = unit.memory.saved[0] / unit.times.forward[0]
    return replace(unit, network=replace(unit.network, host=Link(bandwidth=bandwidth)))


def linked(cost: Cost, device: torch.device, gather: Meeting) -> Cost:
    """A cost that knows the link of a device to its host: by short copies, where it did not.

    The slowest counts. Every rank calls this, with a cost that knows as much.
    """
    if cost.network.host.bandwidth != float("inf"):
        return cost
    own = _bandwidth(device, lambda: gather(b"", "copies to the host"))
    shares = gather(NUMBER.pack(own), "the links to the host")
    link = Link(bandwidth=min(bandwidth for (bandwidth,) in map(NUMBER.unpack, shares)))
    return replace(cost, network=replace(cost.network, host=link))


def slowed(cost: Cost, factor: float) -> Cost:
    """A cost whose copies to the host take this many times as long."""
    host = replace(cost.network.host, bandwidth=cost.network.host.bandwidth / factor)
    return replace(cost, network=replace(cost.network, host=host))


def _bandwidth(device: torch.device, meet: Callable[[], object]) -> float:
    """Bytes in a second each way, while both are copied; all ranks begin once they have met."""
    is_gpu = device.type == "cuda"
    away, home = (torch.zeros(COPIED, dtype=torch.uint8, device=device) for _ in range(2))
    hosts = [
        torch.zeros(COPIED, dtype=torch.uint8, device="cpu", pin_memory=is_gpu) for _ in range(2)
    ]
    streams = [_stream(device) for _ in hosts]
    began = 0.0
    for number in range(1 + COPIES):
        if number == 1:  # the first one warms up
            _finish(device)
            meet()
            began = time.perf_counter()
        with torch.cuda.stream(streams[0]):
            hosts[0].copy_(away, non_blocking=True)
        with torch.cuda.stream(streams[1]):
            home.copy_(hosts[1], non_blocking=True)
    _finish(device)
    return COPIED * COPIES / max(time.perf_counter() - began, 1e-9)


def _stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

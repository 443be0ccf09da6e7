"""Clocks: when every action of a run began and ended, on one time for all ranks.

On a CPU an action is over when its call returns. On a GPU it runs later, so that events on the
device's own stream say when.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch

from weft.runtime.ranks.mesh import Mesh
from weft.runtime.ranks.records import Record

PINGS = 32
TIME = struct.Struct("<d")

Stamp: TypeAlias = Any  # seconds, or an event of a device


class Recording:
    """What this process ran and when: rows of a program, each in some lap."""

    def __init__(self, device: torch.device) -> None:
        self.log: list[tuple[int, int, Stamp, Stamp]] = []  # row, lap, start and end
        self.now: Callable[[], Stamp] = time.perf_counter
        if device.type == "cuda":
            self._begin_events(device)

    def seconds(self) -> Iterator[tuple[int, int, float, float]]:
        """Row, lap, start and end in seconds of this process's clock."""
        for row, lap, start, end in self.log:
            yield row, lap, self._read(start), self._read(end)

    def _begin_events(self, device: torch.device) -> None:
        torch.cuda.synchronize(device)
        self._device = device
        self._origin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._origin.record(torch.cuda.current_stream(device))
        self._began = time.perf_counter()
        self.now = self._event

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _read(self, stamp: Stamp) -> float:
        if isinstance(stamp, float):
            return stamp
        stamp.synchronize()
        return self._began + float(self._origin.elapsed_time(stamp)) / 1000


def offset(mesh: Mesh) -> float:
    """What to add to this rank's clock to have that of rank 0; all ranks call this.

    Rank 0 answers with its time at once, so the round trip of least length is off by half of it
    at most.
    """
    answers: list[float] = []
    mesh.handle(Record.PONG, lambda _, content: answers.append(TIME.unpack(content)[0]))
    mesh.handle(
        Record.PING, lambda other, _: mesh.send(other, Record.PONG, TIME.pack(time.perf_counter()))
    )
    mesh.gather(b"", "the start of setting clocks")
    best, found = float("inf"), 0.0
    for _ in range(PINGS if mesh.rank else 0):
        sent = time.perf_counter()
        mesh.send(0, Record.PING)
        mesh.wait(lambda: bool(answers), lambda: "the time of device 0", 0)
        received = time.perf_counter()
        if received - sent < best:
            best, found = received - sent, answers[-1] - (sent + received) / 2
        answers.clear()
    mesh.gather(b"", "the end of setting clocks")
    return found

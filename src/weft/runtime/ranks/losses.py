"""RunLosses of microbatches, reported to every rank by whoever computes them.

Reporting never waits; only whoever asks for a loss that is not there yet does.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

import torch
from torch import Tensor

from weft.runtime.device.readout import Readouts
from weft.runtime.ranks.mesh import Mesh
from weft.runtime.ranks.records import Record

HEAD = struct.Struct("<qIB")  # run, microbatches in all, place of their type
ENTRY = struct.Struct("<id")  # microbatch, loss
TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(slots=True)
class RunLosses:
    """What is known of a run's losses."""

    known: dict[int, float] = field(default_factory=dict)
    dtype: torch.dtype = torch.float64  # that all of them have
    reporters: set[int] = field(default_factory=set)  # ranks that have reported theirs
    count: int = 0
    is_open: bool = False

    @property
    def is_complete(self) -> bool:
        return 0 < self.count == len(self.known)


class LossReports:
    """The losses of the runs that are under way here or elsewhere.

    `holders` are the ranks that compute losses.
    """

    def __init__(
        self, mesh: Mesh | None, holders: Sequence[int], readouts: Readouts | None = None
    ) -> None:
        self._mesh, self._holders, self._readouts = mesh, holders, readouts or Readouts()
        self._runs: dict[int, RunLosses] = {}
        self._lock = Lock()  # as any thread may receive what others report
        if mesh is not None:
            mesh.handle(Record.LOSSES, self._on_losses)

    def open(self, run: int, count: int) -> RunLosses:
        """What will be known of a run, and how many losses it has."""
        with self._lock:
            opened = self._runs.setdefault(run, RunLosses())
            opened.count, opened.is_open = count, True
            self._drop(run)
            return opened

    def report(self, run: int, losses: Mapping[int, Tensor]) -> None:
        """Enter losses that are computed here, and send them to every other rank.

        A device may still compute them: they are sent when they are there.
        """
        values = torch.stack([loss.reshape(()) for loss in losses.values()])
        dtype = values.dtype if values.dtype in TYPES else TYPES[0]
        then = partial(self._send, run, self._runs[run], [*losses], dtype)
        self._readouts.add(values.double(), then)

    def _send(
        self,
        run: int,
        opened: RunLosses,
        microbatches: Sequence[int],
        dtype: torch.dtype,
        losses: Sequence[float],
    ) -> None:
        found = dict(zip(microbatches, losses, strict=True))
        self._enter(run, opened.count, dtype, found)
        if self._mesh is not None:
            entries = b"".join(ENTRY.pack(*entry) for entry in found.items())
            self._mesh.send_all(
                Record.LOSSES, HEAD.pack(run, opened.count, TYPES.index(dtype)) + entries
            )

    def wait(self, opened: RunLosses) -> list[float]:
        """All losses of a run, by microbatch."""
        if not opened.is_complete:
            self._readouts.settle("the losses that it computes itself")
        for holder in self._holders:
            self._wait_for(holder, opened)
        return [opened.known[microbatch] for microbatch in range(opened.count)]

    def _wait_for(self, holder: int, opened: RunLosses) -> None:
        if self._mesh is not None and holder != self._mesh.rank:
            self._mesh.wait(
                lambda: opened.is_complete or holder in opened.reporters,
                lambda: f"the losses of device {holder}",
                holder,
            )

    def _on_losses(self, other: int, content: bytes) -> None:
        run, count, place = HEAD.unpack_from(content)
        self._enter(run, count, TYPES[place], dict(ENTRY.iter_unpack(content[HEAD.size :])), other)

    def _enter(
        self,
        run: int,
        count: int,
        dtype: torch.dtype,
        found: Mapping[int, float],
        *reporters: int,
    ) -> None:
        with self._lock:
            entered = self._runs.setdefault(run, RunLosses())
            entered.count, entered.dtype = count, dtype
            entered.reporters.update(reporters)
            entered.known.update(found)
            self._drop(run)

    def _drop(self, run: int) -> None:
        """Whoever opened a run that is complete keeps it; this need not."""
        if self._runs[run].is_open and self._runs[run].is_complete:
            del self._runs[run]

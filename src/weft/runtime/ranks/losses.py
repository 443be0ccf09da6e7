"""The ledger: losses of microbatches, told to every rank by whoever computes them.

Telling never waits; only whoever asks for a loss that is not there yet does.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from weft.runtime.ranks.mesh import Mesh, Record

HEAD = struct.Struct("<qI")  # run, microbatches in all
ENTRY = struct.Struct("<id")  # microbatch, loss


@dataclass(slots=True)
class Losses:
    """What is known of a run's losses."""

    known: dict[int, float] = field(default_factory=dict)
    tellers: set[int] = field(default_factory=set)  # ranks that have told theirs
    count: int = 0
    is_open: bool = False

    @property
    def is_complete(self) -> bool:
        return 0 < self.count == len(self.known)


class Ledger:
    """The losses of the runs that are under way here or elsewhere.

    `holders` are the ranks that compute losses.
    """

    def __init__(self, mesh: Mesh | None, holders: Sequence[int]) -> None:
        self._mesh, self._holders = mesh, holders
        self._runs: dict[int, Losses] = {}
        if mesh is not None:
            mesh.handle(Record.LOSSES, self._on_losses)

    def open(self, run: int, count: int) -> Losses:
        """The page of a run."""
        page = self._runs.setdefault(run, Losses())
        page.count, page.is_open = count, True
        self._drop(run)
        return page

    def tell(self, run: int, losses: Mapping[int, Tensor | float]) -> None:
        """Enter losses that were computed here, and tell every other rank."""
        page = self._runs[run]
        found = {microbatch: float(loss) for microbatch, loss in losses.items()}
        self._enter(run, page.count, found)
        if self._mesh is not None:
            entries = b"".join(ENTRY.pack(*entry) for entry in found.items())
            self._mesh.tell_all(Record.LOSSES, HEAD.pack(run, page.count) + entries)

    def wait(self, page: Losses) -> list[float]:
        """All losses of a run, by microbatch."""
        for holder in self._holders:
            self._wait_for(holder, page)
        return [page.known[microbatch] for microbatch in range(page.count)]

    def _wait_for(self, holder: int, page: Losses) -> None:
        if self._mesh is not None and holder != self._mesh.rank:
            self._mesh.wait(
                lambda: page.is_complete or holder in page.tellers,
                lambda: f"the losses of device {holder}",
                holder,
            )

    def _on_losses(self, other: int, content: bytes) -> None:
        run, count = HEAD.unpack_from(content)
        self._runs.setdefault(run, Losses()).tellers.add(other)
        self._enter(run, count, dict(ENTRY.iter_unpack(content[HEAD.size :])))

    def _enter(self, run: int, count: int, found: Mapping[int, float]) -> None:
        page = self._runs.setdefault(run, Losses())
        page.count = count
        page.known.update(found)
        self._drop(run)

    def _drop(self, run: int) -> None:
        """Whoever opened a complete page keeps it; the ledger need not."""
        if self._runs[run].is_open and self._runs[run].is_complete:
            del self._runs[run]

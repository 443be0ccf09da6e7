"""Counts of valid targets, which replicas send to each other: each knows only its own."""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from collections.abc import Sequence

from weft.runtime.ranks.mesh import Mesh
from weft.runtime.ranks.records import Record

COUNT = struct.Struct("<q")


class Counts:
    """What last stages have counted; `judges` are their devices, replica by replica."""

    def __init__(self, mesh: Mesh, judges: Sequence[Sequence[int]]) -> None:
        self._mesh = mesh
        self._here = next(i for i, group in enumerate(judges) if mesh.rank in group)
        self._others = [group for i, group in enumerate(judges) if i != self._here]
        self._is_first = judges[self._here][0] == mesh.rank
        self._arrived: dict[int, deque[int]] = defaultdict(deque)
        mesh.handle(Record.COUNT, self._on_count)

    def total(self, mine: int) -> int:
        """The sum over all replicas; the last stages of all ask in every run."""
        for group in self._others if self._is_first else ():
            for other in group:
                self._mesh.send(other, Record.COUNT, COUNT.pack(mine))
        return mine + sum(self._from(group[0]) for group in self._others)

    def _from(self, source: int) -> int:
        arrived = self._arrived[source]
        self._mesh.wait(
            arrived.__len__, lambda: f"the count of the targets of device {source}", source
        )
        return arrived.popleft()

    def _on_count(self, source: int, content: bytes) -> None:
        self._arrived[source].append(*COUNT.unpack(content))

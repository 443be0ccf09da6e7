"""The board: what the gradients of an update measure, told to every rank by whoever has them.

Telling never waits; only whoever needs a norm that is not there yet does.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from weft.runtime.ranks.mesh import Mesh, Record

HEAD = struct.Struct("<qI")  # update, part
ENTRY = struct.Struct("<Id")  # place of a weight in the model, norm of its gradient


class Entry(NamedTuple):
    """The gradients of a part of the model in an update."""

    update: int
    part: int


class Board:
    """Norms of gradients by update and part of the model, in all processes alike."""

    def __init__(self, mesh: Mesh | None) -> None:
        self._mesh = mesh
        self._known: dict[Entry, dict[int, float]] = {}
        if mesh is not None:
            mesh.handle(Record.NORMS, self._on_norms)

    def tell(self, entry: Entry, norms: Mapping[int, float]) -> None:
        """Enter norms by the places of their weights, and tell every other rank."""
        self._known[entry] = dict(norms)
        if self._mesh is not None:
            entries = b"".join(ENTRY.pack(*pair) for pair in norms.items())
            self._mesh.tell_all(Record.NORMS, HEAD.pack(*entry) + entries)

    def has(self, entry: Entry) -> bool:
        return entry in self._known

    def wait(self, entry: Entry, holder: int) -> dict[int, float]:
        """Norms that a device tells, or has told."""
        if self._mesh is not None and entry not in self._known:
            self._mesh.wait(
                lambda: entry in self._known,
                lambda: f"the norms of update {entry.update} of device {holder}",
                holder,
            )
        return self._known[entry]

    def forget(self, before: int) -> None:
        """Drop the norms of updates that nobody here needs any more."""
        for entry in [entry for entry in self._known if entry.update < before]:
            del self._known[entry]

    def _on_norms(self, _: int, content: bytes) -> None:
        entry = Entry(*HEAD.unpack_from(content))
        self._known[entry] = dict(ENTRY.iter_unpack(content[HEAD.size :]))

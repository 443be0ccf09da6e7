"""A store over the mesh: what a library of process groups wants ranks to know of each other.

It is the ranks' own: nobody else can read it. Whoever waits for a key notices at once that the
rank which should tell it has died.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch._C._distributed_c10d import Store

from weft.runtime.mesh import Mesh, Record, devices_of

SIZE = struct.Struct("<I")  # of the key, before it and its value


class MeshStore(Store):
    """Keys that any rank sets and all can read; there can be one for each mesh."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__()
        self._mesh = mesh
        self._known: dict[str, bytes] = {}
        self._told = Counter(dict.fromkeys(range(mesh.ranks), 0))
        mesh.handle(Record.KEY, self._on_key)

    def set(self, key: str, value: Any) -> None:
        name, value = key.encode(), value.encode() if isinstance(value, str) else bytes(value)
        self._known[key] = value
        self._told[self._mesh.rank] += 1
        self._mesh.tell_all(Record.KEY, SIZE.pack(len(name)) + name + value)

    def wait(self, keys: Sequence[str], *_: object) -> None:
        """Until they are known; the mesh knows how long that may take."""
        others = [other for other in self._told if other != self._mesh.rank]
        self._mesh.wait(lambda: all(key in self._known for key in keys), self._missing, *others)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._known[key]

    def _missing(self) -> str:
        """Who is behind this rank, as all ranks set as many keys."""
        mine = self._told[self._mesh.rank]
        behind = [other for other, count in self._told.items() if count < mine]
        return f"{devices_of(behind or [self._mesh.rank])} to open connections"

    def _on_key(self, other: int, content: bytes) -> None:
        (size,) = SIZE.unpack_from(content)
        place = SIZE.size + size
        self._known[content[SIZE.size : place].decode()] = content[place:]
        self._told[other] += 1

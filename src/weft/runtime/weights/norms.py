"""Norms of gradients, sent to every rank by whoever has them.

Sending never waits; only whoever needs a norm that is not there yet does.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from torch import Tensor

from weft.runtime.device.readout import Readouts
from weft.runtime.ranks.mesh import Mesh
from weft.runtime.ranks.records import Record

HEAD = struct.Struct("<qI")  # update, parameter group
ENTRY = struct.Struct("<Id")  # place of a weight in the model, norm of its gradient


class Measured(NamedTuple):
    """The gradients of a parameter group in an update."""

    update: int
    group: int


class Norms:
    """Norms by update and parameter group, in all processes alike."""

    def __init__(self, mesh: Mesh | None, readouts: Readouts | None = None) -> None:
        self._mesh, self._readouts = mesh, readouts or Readouts()
        self._known: dict[Measured, dict[int, float]] = {}
        if mesh is not None:
            mesh.handle(Record.NORMS, self._on_norms)

    def send(self, measured: Measured, places: Sequence[int], norms: Tensor) -> None:
        """Send every rank the norms of the weights at these places, once they are computed."""
        self._readouts.add(norms, partial(self._enter, measured, places))

    def _enter(self, measured: Measured, places: Sequence[int], values: Sequence[float]) -> None:
        norms = dict(zip(places, values, strict=True))
        self._known[measured] = norms
        if self._mesh is not None:
            entries = b"".join(ENTRY.pack(*pair) for pair in norms.items())
            self._mesh.send_all(Record.NORMS, HEAD.pack(*measured) + entries)

    def wait(self, measured: Measured, holder: int) -> dict[int, float]:
        """Norms that a device sends, or has sent."""
        if measured not in self._known:
            self._readouts.settle("the norms that it computes itself")
        if self._mesh is not None and measured not in self._known:
            self._mesh.wait(
                lambda: measured in self._known,
                lambda: f"the norms of step {measured.update + 1} of device {holder}",
                holder,
            )
        return self._known[measured]

    def forget(self, before: int) -> None:
        """Drop the norms of updates that nobody here needs any more."""
        for measured in [one for one in [*self._known] if one.update < before]:
            del self._known[measured]

    def restart(self) -> None:
        """Drop all norms: updates are counted from elsewhere."""
        self._known.clear()

    def _on_norms(self, _: int, content: bytes) -> None:
        measured = Measured(*HEAD.unpack_from(content))
        self._known[measured] = dict(ENTRY.iter_unpack(content[HEAD.size :]))

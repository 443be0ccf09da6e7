"""Layouts of batches, sent by a rank that reads inputs to those that are given none.

Both ends count on the order of what one rank sends to another: a layout for each run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from weft.runtime.ranks.mesh import Mesh
from weft.runtime.ranks.records import Record

SAME = b""  # as in the run before


class LayoutReports:
    """What ranks say of the batches that others are not given."""

    def __init__(self, mesh: Mesh | None) -> None:
        self._mesh, self._sent, self._received = mesh, SAME, SAME
        self._arrived: deque[bytes] = deque()
        if mesh is not None:
            mesh.handle(Record.LAYOUT, lambda _, content: self._arrived.append(content))

    def send(self, others: Iterable[int], content: bytes) -> None:
        """Let the same others know in every run; in most runs that is that nothing has changed."""
        if self._mesh is None:
            return
        news, self._sent = SAME if content == self._sent else content, content
        for other in others:
            self._mesh.send(other, Record.LAYOUT, news)

    def wait(self, source: int) -> bytes:
        """What a rank has sent for the run at hand."""
        assert self._mesh is not None
        what = "the shapes of the batch of device"
        self._mesh.wait(self._arrived.__len__, lambda: f"{what} {source}", source)
        self._received = self._arrived.popleft() or self._received
        return self._received

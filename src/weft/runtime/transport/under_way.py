"""What was launched on a device and may wait there for other ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from weft.errors import RankError
from weft.runtime.ranks.blame import devices_of
from weft.runtime.ranks.mesh import Mesh


class Launched(Protocol):
    """Transfers or a sum; `peers` are the devices without which it is never over."""

    @property
    def peers(self) -> Collection[int]: ...

    @property
    def is_over(self) -> bool: ...


class Oldest(NamedTuple):
    """The first that is not over: its number among all, and the devices at the other ends."""

    number: int
    others: Sequence[int]


class UnderWay:
    """All that is not known to be over, in the order in which it was launched.

    `is_running` between the begin and the end of a run: at other times nobody has to come.
    """

    def __init__(self, what: str) -> None:
        self._launched: deque[tuple[int, Launched]] = deque()
        self._count = 0
        self.what, self.is_running = what, False

    def add(self, launched: Launched) -> None:
        """Keep it until it is over, with all that it holds."""
        self._launched.append((self._count, launched))
        self._count += 1
        while self._launched and self._launched[0][1].is_over:
            self._launched.popleft()

    def oldest(self) -> Oldest | None:
        """Of other threads, too."""
        for number, launched in [*self._launched]:
            if not launched.is_over:
                return Oldest(number, sorted(launched.peers))
        return None

    def finish(self, mesh: Mesh) -> None:
        """Wait until all is over: other ranks need this one for it; not if one of them has failed.

        A host may be far ahead of its device when it has nothing more to do.
        """

        def what() -> str:
            first = self.oldest()
            others = f" with {devices_of(first.others)}" if first else ""
            return f"the end of {self.what}{others}"

        with suppress(RankError, RuntimeError):  # of a communicator that was aborted
            mesh.wait_for_device(lambda: self.oldest() is None, what)
        self._launched.clear()

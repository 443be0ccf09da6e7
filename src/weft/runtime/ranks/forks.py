"""Forks: a child gets a copy of every open file, also of those by which its parent is known alive.

Nobody would notice that a rank has died while a worker of its data loader keeps its connections
open. So a child closes them first of all.
"""

from __future__ import annotations

import os
import socket
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

FILES = Path("/proc/self/fd")


class Inherited(Protocol):
    """Something that holds connections of this process."""

    def close_in_child(self) -> None:
        """Close the copies that a forked child has; its parent's stay open."""


_HELD: weakref.WeakSet[Inherited] = weakref.WeakSet()


def close_in_children(held: Inherited) -> None:
    """Let every child that is forked from now on close these connections."""
    _HELD.add(held)


@contextmanager
def opened() -> Iterator[Sockets]:
    """The sockets that are opened meanwhile, by a library that does not name them."""
    before, found = _sockets(), Sockets()
    yield found
    found.places |= dict(_sockets().items() - before.items())  # numbers are used again
    close_in_children(found)


class Sockets:
    """Open sockets by their numbers; a number may come again, its place on the disk does not."""

    def __init__(self) -> None:
        self.places: dict[int, int] = {}

    def close_in_child(self) -> None:
        for file in self._there():
            os.close(file)

    def shut(self) -> None:
        """Let nobody wait for what comes through them, neither here nor at the other ends."""
        for file in self._there():
            with suppress(OSError), socket.socket(fileno=os.dup(file)) as one:
                if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    one.shutdown(socket.SHUT_RDWR)

    def _there(self) -> Iterator[int]:
        """Those that are still open."""
        for file, place in self.places.items():
            with suppress(OSError):
                if os.fstat(file).st_ino == place:
                    yield file


def _sockets() -> dict[int, int]:
    """The inodes of all sockets that this process has open, by number; none where /proc is not."""
    found = {}
    for name in os.listdir(FILES) if FILES.exists() else ():
        with suppress(OSError):  # the one of the folder itself
            known = os.fstat(int(name))
            if stat.S_ISSOCK(known.st_mode):
                found[int(name)] = known.st_ino
    return found


def _close_all() -> None:
    for held in list(_HELD):
        held.close_in_child()


os.register_at_fork(after_in_child=_close_all)

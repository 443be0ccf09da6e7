"""Sleepers: threads of one rank that wait at the same time, each in a poll of its own.

    thread 1    asleep: polls all sockets and its bell   ◁──── rings ────┐
    thread 2    takes a record from a socket, and thread 1's wait is over┘

Whoever takes a record may not be who waits for it. So it asks, of each other thread that waits,
whether its wait is over now, and wakes those that it is over for.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from threading import Lock, get_ident
from typing import TypeAlias

from weft.runtime.ranks.peer import Peer

IsDone: TypeAlias = Callable[[], object]

NEVER = -1


class Sleeper:
    """A poll, a bell that ends it, and what the thread that uses both waits for."""

    def __init__(self) -> None:
        self._bell, self._button = socket.socketpair()
        self._bell.setblocking(False)
        self._button.setblocking(False)
        self._poll = select.poll()
        self.version = NEVER  # of the sockets that it polls
        self.thread = 0
        self.is_done: IsDone = bool
        self.among: Collection[int] | None = None  # the ranks that it looks at; None for all

    def poll(self, seconds: float) -> list[tuple[int, int]]:
        """The sockets at which something happens, after that long at most, or when it rings."""
        found = self._poll.poll(max(0.0, seconds) * 1000)
        bell = self._bell.fileno()
        if any(file == bell for file, _ in found):
            self._bell.recv(1 << 10)
            return [pair for pair in found if pair[0] != bell]
        return found

    def watch(self, peers: Collection[Peer], version: int) -> None:
        """Poll these from now on, also for room where something is left to send."""
        self._poll, self.version = select.poll(), version
        self._poll.register(self._bell, select.POLLIN)
        for peer in peers:
            room = select.POLLOUT if peer.unsent else 0
            self._poll.register(peer.file, select.POLLIN | room)

    def looks_at(self, other: int) -> bool:
        return self.among is None or other in self.among

    def ring(self) -> None:
        """End the poll, or the next one if there is none now."""
        with suppress(OSError):  # it has rung often enough, or has gone
            self._button.send(b".")

    def close(self) -> None:
        self._bell.close()
        self._button.close()


class Sleepers:
    """The threads that wait, in order of their coming; `present` are the ranks still connected."""

    def __init__(self, peers: Mapping[int, Peer], present: Collection[int]) -> None:
        self._peers, self._present = peers, present
        self.waiting: list[Sleeper] = []
        self._idle = [Sleeper()]  # threads take turns with few
        self._version, self._is_closed = 0, False
        self._lock = Lock()

    def enter(self, is_done: IsDone, among: Collection[int] | None = None) -> Sleeper:
        """Where this thread may sleep; from now on it is woken when its wait is over.

        It looks at the connections of all ranks, or of some of them. It has to ask once more itself
        whether its wait is over: that may have come just before.
        """
        with self._lock:
            sleeper = self._idle.pop() if self._idle else Sleeper()
            if sleeper.among != among:
                sleeper.among, sleeper.version = among, NEVER
            sleeper.is_done, sleeper.thread = is_done, get_ident()
            self.waiting.append(sleeper)
        return sleeper

    def leave(self, sleeper: Sleeper) -> None:
        """The thread of this one waits no longer."""
        with self._lock:
            self.waiting.remove(sleeper)
            sleeper.is_done = bool  # so that what it waited for is not kept
            if self._is_closed:
                sleeper.close()
            else:
                self._idle.append(sleeper)

    def poll(self, sleeper: Sleeper, seconds: float) -> list[tuple[int, int]]:
        """What happens at the sockets of the ranks that are still connected."""
        if sleeper.version != self._version:
            version = self._version  # read first: what changes meanwhile is looked at again
            present = [other for other in tuple(self._present) if sleeper.looks_at(other)]
            sleeper.watch([self._peers[other] for other in present], version)
        return sleeper.poll(seconds)

    def wake(self) -> None:
        """Wake the other threads whose waits are over."""
        thread = get_ident()
        for sleeper in tuple(self.waiting):
            if sleeper.thread != thread and sleeper.is_done():
                sleeper.ring()

    def wake_all(self) -> None:
        """Wake all other threads: what they wait for may never come."""
        thread = get_ident()
        for sleeper in tuple(self.waiting):
            if sleeper.thread != thread:
                sleeper.ring()

    def watch_again(self) -> None:
        """Let all threads see which ranks are left, and where there is a rest to send."""
        with self._lock:
            self._version += 1
        self.wake_all()

    def close(self) -> None:
        """End all sleep; the last to wake up closes what it slept with."""
        with self._lock:
            self._is_closed = True
            while self._idle:
                self._idle.pop().close()
        self.wake_all()

    def close_in_child(self) -> None:
        """In a forked child, where no thread sleeps."""
        self._lock = Lock()
        self._idle, self.waiting = [*self._idle, *self.waiting], []
        self.close()

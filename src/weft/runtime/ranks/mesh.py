"""The mesh: a stream socket between every two ranks, for all that is small.

    rank 0 ── rank 1
      │  ╲  ╱  │         Unix sockets on one host, TCP between hosts
      │  ╱  ╲  │
    rank 2 ── rank 3

Records are a kind and bytes; nothing is unpickled. Whoever waits, waits here: a rank that fails,
dies or leaves is noticed at once, and a wait that takes too long ends with what it waited for.

Several threads of a rank may send and wait at the same time. Each takes what comes, also for the
others, one of them at a time; none keeps the others from that while it sleeps.
"""

from __future__ import annotations

import os
import select
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from threading import RLock
from types import MappingProxyType

from weft.errors import RankError
from weft.runtime.ranks.blame import devices_of
from weft.runtime.ranks.forks import close_in_children
from weft.runtime.ranks.peer import Peer
from weft.runtime.ranks.records import FRAME, Record, RecordHandler, framed
from weft.runtime.ranks.sleepers import IsDone, Sleeper, Sleepers

CHUNK = 1 << 16
SLICE = 1.0  # seconds between two looks at the clock
BRIEF = 2e-4  # seconds of a wait in which this rank does not sleep


class Mesh:
    """This rank's sockets to all others, and those for open files where they share a host.

    `deadline` bounds every wait, in seconds; None waits for as long as all ranks live. `occasion`
    is added where one is over.
    """

    def __init__(
        self,
        rank: int,
        peers: Mapping[int, socket.socket],
        files: Mapping[int, socket.socket] = MappingProxyType({}),
    ) -> None:
        self.rank, self.ranks, self._files = rank, len(peers) + 1, files
        self.deadline: float | None = None
        self.occasion = ""  # what all wait in, where that is worth saying
        self._peers = {other: Peer(connection) for other, connection in peers.items()}
        self._by_file = {peer.file: other for other, peer in self._peers.items()}
        self._open = set(peers)
        self._left: set[int] = set()
        self._failure: str | None = None
        self._shares: dict[int, deque[bytes]] = {other: deque() for other in peers}
        self._handlers: dict[int, RecordHandler] = {
            Record.FAILED: self._on_failed,
            Record.LEFT: self._on_left,
            Record.GATHERED: lambda other, share: self._shares[other].append(share),
        }
        self._sleepers = Sleepers(self._peers, self._open)
        # Taken in this order; handlers run with the first.
        self._receiving, self._failing = RLock(), RLock()
        held = self._peers, files, self._sleepers
        self._closer = weakref.finalize(self, _leave, os.getpid(), *held)
        close_in_children(self)

    def handle(self, record: Record, handler: RecordHandler) -> None:
        """Let a function take all records of a kind, in any thread, but one record at a time."""
        self._handlers[record] = handler

    def send(self, other: int, record: Record, content: bytes = b"") -> None:
        """Send a record; what the socket does not take at once leaves with the next `pump`."""
        self.post(other, framed(record, content))

    def post(self, other: int, frame: bytes) -> None:
        """The same with a record that is `framed` already."""
        if self._peers[other].post(frame):
            self._sleepers.watch_again()

    def give(self, other: int, file: int) -> None:
        """Give an open file to a rank of this host; a record should ask it to take it."""
        with suppress(OSError):  # it is gone, which the next wait notices
            socket.send_fds(self._files[other], [b"."], [file])

    def given(self, other: int) -> int:
        """The oldest file that a rank gave and that was not taken yet."""
        _, files, _, _ = socket.recv_fds(self._files[other], 1, 1, socket.MSG_CMSG_CLOEXEC)
        return files[0]

    def send_all(self, record: Record, content: bytes = b"") -> None:
        for other in self._peers:
            if other not in self._left:
                self.send(other, record, content)

    def fail(self, text: str) -> None:
        """Report to every other rank that this one gives up; no wait of theirs outlives it.

        Nor does one of another thread here; whoever fails later returns when that was sent to all.
        """
        with self._failing:
            if self._failure is not None:
                return
            self._failure = text
            self._sleepers.wake_all()
            for peer in self._peers.values():
                peer.push(framed(Record.FAILED, text.encode()), SLICE)

    def check(self) -> None:
        """Refuse to go on after a failure, here or elsewhere."""
        if self._failure is not None:
            raise RankError(self._failure)

    def receive(self, other: int) -> None:
        """Take what one rank has sent, without waiting; wake the threads that waited for it."""
        peer = self._peers[other]
        with self._receiving:
            try:
                received = peer.socket.recv(CHUNK)
            except BlockingIOError:
                return
            except OSError:
                received = b""
            if not received:
                self._end(other)
                return
            if peer.begun:
                received = peer.begun + received
            used = self._dispatched(other, received)
            peer.begun = received[used:] if used < len(received) else b""
        if self._sleepers.waiting:
            self._sleepers.wake()

    def look(self) -> None:
        """Take what all ranks have sent by now; a failure may be among it."""
        sleeper = self._sleepers.enter(bool)
        try:
            self._take_all(sleeper)
        finally:
            self._sleepers.leave(sleeper)
        self.check()

    def _take_all(self, sleeper: Sleeper) -> None:
        with self._receiving:  # so that no other thread has taken something and not handled it
            while self._pump(sleeper, 0):
                pass

    def _pump(self, sleeper: Sleeper, seconds: float) -> bool:
        """Take what ranks have sent; wait at most that long for the first of it. Was there any?"""
        found = self._sleepers.poll(sleeper, seconds)
        for file, events in found:
            other = self._by_file[file]
            if events & select.POLLOUT and self._peers[other].send_rest():
                self._sleepers.watch_again()
            if events & ~select.POLLOUT:
                self.receive(other)
        return any(events & ~select.POLLOUT for _, events in found)

    def wait(self, is_done: IsDone, what: Callable[[], str], *sources: int) -> None:
        """Wait until something is so that depends on some ranks; any thread may ask `is_done`.

        What was sent before a failure counts, though the failure was received first.
        """
        began = time.monotonic()
        self._listen(is_done, began + BRIEF, sources)
        if is_done():
            return
        sleeper = self._sleepers.enter(is_done)
        try:
            while not is_done():
                if reason := self._failure or self._reason(began, sources):
                    self._take_all(sleeper)
                    if is_done():
                        return
                    raise self.blamed(reason, what())
                self._pump(sleeper, SLICE if self.deadline is None else min(SLICE, self.deadline))
        finally:
            self._sleepers.leave(sleeper)

    def watch(self, began: float, what: str, *sources: int) -> None:
        """The same without waiting, for something that ranks do by other means since then."""
        with suppress(RankError):
            self.look()
        if reason := self._failure or self._reason(began, sources):
            raise self.blamed(reason, what)

    def _reason(self, began: float, sources: Iterable[int]) -> str | None:
        """Why a wait should not go on."""
        if gone := self._left.intersection(sources):
            return f"device {min(gone)} has left"
        if self.deadline is not None and time.monotonic() - began > self.deadline:
            return f"nothing came within the deadline of {self.deadline:g} s{self.occasion}"
        return None

    def _listen(self, is_done: IsDone, until: float, sources: Iterable[int]) -> None:
        """Poll for a moment: sleeping and waking takes longer than most waits."""
        while not is_done() and not self._failure and self._open.issuperset(sources):
            for source in sources:
                self.receive(source)
            if time.monotonic() > until:
                return
            os.sched_yield()

    def blamed(self, cause: object, what: str) -> RankError:
        """Why a wait ended, and what it was for."""
        return RankError(f"{cause}; device {self.rank} was waiting for {what}")

    def gather(self, share: bytes, what: str) -> list[bytes]:
        """Every rank's share, in the order of the ranks; all call this, in their main threads."""
        self.send_all(Record.GATHERED, share)
        shares = []
        for other in range(self.ranks):
            if other == self.rank:
                shares.append(share)
                continue
            arrived = self._shares[other]
            self.wait(arrived.__len__, lambda: f"{what} of {self._silent(other)}", other)  # noqa: B023
            shares.append(arrived.popleft())
        return shares

    def _silent(self, first: int) -> str:
        """Whose shares of a gathering have not come, from this rank on."""
        after = (other for other in range(first, self.ranks) if other != self.rank)
        return devices_of(other for other in after if not self._shares[other])

    def close(self) -> None:
        """Leave in good order; whatever another thread waits for ends."""
        self._end_all("this pipeline is closed: make another one to go on")
        self._sleepers.watch_again()
        self._closer()

    def close_in_child(self) -> None:
        for peer in self._peers.values():
            peer.unlock()
            peer.close()
        for connection in self._files.values():
            connection.close()
        self._sleepers.close_in_child()
        self._receiving, self._failing = RLock(), RLock()
        self._end_all(f"this process was forked from device {self.rank}, which alone can go on")

    def _end_all(self, why: str) -> None:
        """Let nothing be waited for any more."""
        self._failure = self._failure or why
        self._open.clear()

    def _dispatched(self, other: int, received: bytes) -> int:
        """Hand whole records to their handlers; the bytes used."""
        place, size = 0, FRAME.size
        while len(received) - place >= size:
            record, length = FRAME.unpack_from(received, place)
            if len(received) - place - size < length:
                break
            self._handlers[record](other, received[place + size : place + size + length])
            place += size + length
        return place

    def _on_failed(self, _: int, text: bytes) -> None:
        self.fail(text.decode())  # passed on, so that nobody learns of this rank's end before

    def _on_left(self, other: int, _: bytes) -> None:
        self._left.add(other)
        self._sleepers.wake_all()

    def _end(self, other: int) -> None:
        """A socket has ended: in good order, or the rank has died."""
        if other not in self._open:  # another thread has seen it, or closed the mesh
            return
        self._open.discard(other)
        self._sleepers.watch_again()
        if other not in self._left:
            self._left.add(other)
            self.fail(f"device {other} died")


def _leave(
    owner: int,
    peers: Mapping[int, Peer],
    files: Mapping[int, socket.socket],
    sleepers: Sleepers,
) -> None:
    """Say goodbye to every rank and close all sockets, in the process that made them alone."""
    for peer in peers.values() if os.getpid() == owner else ():
        peer.push(framed(Record.LEFT), SLICE)
    for peer in peers.values():
        peer.close()
    for connection in files.values():
        connection.close()
    sleepers.close()

"""The mesh: a stream socket between every two ranks, for all that is small.

    rank 0 ── rank 1
      │  ╲  ╱  │         Unix sockets on one host, TCP between hosts
      │  ╱  ╲  │
    rank 2 ── rank 3

Records are a kind and bytes; nothing is unpickled. Whoever waits, waits here: a rank that fails,
dies or leaves is noticed at once, and a wait that takes too long ends with what it waited for.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import IntEnum
from types import MappingProxyType

from weft.errors import RankError
from weft.runtime.ranks.blame import devices_of
from weft.runtime.ranks.forks import close_in_children

FRAME = struct.Struct("<BI")  # kind, bytes that follow
CHUNK = 1 << 16
SLICE = 1.0  # seconds between two looks at the clock
BRIEF = 2e-4  # seconds of a wait in which this rank does not sleep

Handler = Callable[[int, bytes], None]


class Record(IntEnum):
    """What a record tells."""

    FAILED = 0  # text: the sender gives up, and why
    LEFT = 1  # the sender ends in good order
    GATHERED = 2  # one rank's share of a gathering
    LOSSES = 3
    PING = 4
    PONG = 5
    DATA = 6  # a message lies in shared memory
    CREDIT = 7  # messages were taken out of it
    HEADER = 8  # the form of a message that comes otherwise
    NORMS = 9


def framed(record: Record, content: bytes = b"") -> bytes:
    """A record as it travels."""
    return FRAME.pack(record, len(content)) + content


class Mesh:
    """This rank's sockets to all others, and those for open files where they share a host.

    `deadline` bounds every wait, in seconds; None waits for as long as all ranks live.
    """

    def __init__(
        self,
        rank: int,
        peers: Mapping[int, socket.socket],
        files: Mapping[int, socket.socket] = MappingProxyType({}),
    ) -> None:
        self.rank, self.ranks, self._files = rank, len(peers) + 1, files
        self.deadline: float | None = None
        self._peers = dict(peers)
        self._heard = {other: bytearray() for other in peers}  # records that have begun
        self._unsent = {other: bytearray() for other in peers}
        self._left: set[int] = set()
        self._failure: str | None = None
        self._shares: dict[int, deque[bytes]] = {other: deque() for other in peers}
        self._handlers: dict[int, Handler] = {
            Record.FAILED: self._on_failed,
            Record.LEFT: lambda other, _: self._left.add(other),
            Record.GATHERED: lambda other, share: self._shares[other].append(share),
        }
        self._poll = select.poll()
        self._by_file = {peer.fileno(): other for other, peer in peers.items()}
        self._open = set(peers)
        for peer in peers.values():
            peer.setblocking(False)
            self._poll.register(peer, select.POLLIN)
        sockets = [*peers.values(), *files.values()]
        self._closer = weakref.finalize(self, _leave, os.getpid(), sockets, peers, self._unsent)
        close_in_children(self)

    def handle(self, record: Record, handler: Handler) -> None:
        """Let a function take all records of a kind."""
        self._handlers[record] = handler

    def tell(self, other: int, record: Record, content: bytes = b"") -> None:
        """Send a record; what the socket does not take at once leaves with the next `pump`."""
        self.post(other, framed(record, content))

    def post(self, other: int, frame: bytes) -> None:
        """The same with a record that is `framed` already."""
        if self._unsent[other]:
            self._unsent[other] += frame
        else:
            self._send(other, frame)

    def give(self, other: int, file: int) -> None:
        """Give an open file to a rank of this host; a record should tell it to take it."""
        with suppress(OSError):  # it is gone, which the next wait will tell
            socket.send_fds(self._files[other], [b"."], [file])

    def given(self, other: int) -> int:
        """The oldest file that a rank gave and that was not taken yet."""
        _, files, _, _ = socket.recv_fds(self._files[other], 1, 1, socket.MSG_CMSG_CLOEXEC)
        return files[0]

    def _send(self, other: int, frame: bytes) -> None:
        peer, unsent = self._peers[other], self._unsent[other]
        try:
            sent = peer.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # it is gone, which the next wait will tell
        if sent < len(frame):
            unsent += frame[sent:]
            self._poll.modify(self._peers[other], select.POLLIN | select.POLLOUT)

    def tell_all(self, record: Record, content: bytes = b"") -> None:
        for other in self._peers:
            if other not in self._left:
                self.tell(other, record, content)

    def fail(self, text: str) -> None:
        """Tell every other rank that this one gives up; no wait of theirs outlives it."""
        if self._failure is not None:
            return
        self._failure = text
        frame = framed(Record.FAILED, text.encode())
        for other, peer in self._peers.items():
            with suppress(OSError):  # gone already
                peer.settimeout(SLICE)
                peer.sendall(bytes(self._unsent[other]) + frame)
                peer.setblocking(False)
            self._unsent[other].clear()

    def check(self) -> None:
        """Refuse to go on after a failure, here or elsewhere."""
        if self._failure is not None:
            raise RankError(self._failure)

    def hear(self, other: int) -> None:
        """Take what one rank has told, without waiting."""
        try:
            heard = self._peers[other].recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        if not heard:
            self._end(other)
            return
        begun = self._heard[other]
        if begun:
            heard = bytes(begun) + heard
        begun[:] = heard[self._dispatched(other, heard) :]

    def look(self) -> None:
        """Take what all ranks have told by now; a failure may be among it."""
        while self._pump(0):
            pass
        self.check()

    def _pump(self, seconds: float) -> bool:
        """Take what ranks have told; wait so long at most for the first of it. Was there any?"""
        found = self._poll.poll(max(0.0, seconds) * 1000)
        for file, events in found:
            other = self._by_file[file]
            if events & select.POLLOUT:
                self._send_rest(other)
            if events & ~select.POLLOUT:
                self.hear(other)
        return any(events & ~select.POLLOUT for _, events in found)

    def wait(self, is_done: Callable[[], object], what: Callable[[], str], *sources: int) -> None:
        """Wait until something is so that depends on some ranks.

        What was told before a failure counts, though the failure was heard of first.
        """
        began = time.monotonic()
        self._listen(is_done, began + BRIEF, sources)
        while not is_done():
            reason = self._failure or self._reason(began, sources)
            if reason:
                with suppress(RankError):
                    self.look()
                if is_done():
                    return
                raise self.blamed(reason, what())
            self._pump(SLICE if self.deadline is None else min(SLICE, self.deadline))

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
            return f"nothing came within the deadline of {self.deadline:g} s"
        return None

    def _listen(self, is_done: Callable[[], object], until: float, sources: Iterable[int]) -> None:
        """Look again and again for a moment: sleeping and waking takes longer than most waits."""
        while not is_done() and not self._failure and self._open.issuperset(sources):
            for source in sources:
                self.hear(source)
            if time.monotonic() > until:
                return
            os.sched_yield()

    def blamed(self, cause: object, what: str) -> RankError:
        """Why a wait ended, and what it was for."""
        return RankError(f"{cause}; device {self.rank} was waiting for {what}")

    def gather(self, share: bytes, what: str) -> list[bytes]:
        """Every rank's share, in the order of the ranks; all of them call this."""
        self.tell_all(Record.GATHERED, share)
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
        behind = (other for other in range(first, self.ranks) if other != self.rank)
        return devices_of(other for other in behind if not self._shares[other])

    def close(self) -> None:
        """Leave in good order."""
        self._closer()
        self._end_all("this pipeline is closed: make another one to go on")

    def close_in_child(self) -> None:
        for peer in (*self._peers.values(), *self._files.values()):
            peer.close()
        self._end_all(f"this process was forked from device {self.rank}, which alone can go on")

    def _end_all(self, why: str) -> None:
        """Let nothing be waited for any more."""
        self._failure, self._poll = self._failure or why, select.poll()
        self._open.clear()

    def _dispatched(self, other: int, heard: bytes) -> int:
        """Hand whole records to their handlers; the bytes used."""
        place, size = 0, FRAME.size
        while len(heard) - place >= size:
            record, length = FRAME.unpack_from(heard, place)
            if len(heard) - place - size < length:
                break
            self._handlers[record](other, heard[place + size : place + size + length])
            place += size + length
        return place

    def _send_rest(self, other: int) -> None:
        unsent = self._unsent[other]
        try:
            del unsent[: self._peers[other].send(unsent)]
        except BlockingIOError:
            return
        except OSError:
            unsent.clear()
        if not unsent:
            self._poll.modify(self._peers[other], select.POLLIN)

    def _on_failed(self, _: int, text: bytes) -> None:
        self.fail(text.decode())  # passed on, so that nobody hears of this rank's end before

    def _end(self, other: int) -> None:
        """A socket has ended: in good order, or the rank has died."""
        self._poll.unregister(self._peers[other])
        self._open.discard(other)
        if other not in self._left:
            self._left.add(other)
            self.fail(f"device {other} died")


def _leave(
    maker: int,
    sockets: Iterable[socket.socket],
    peers: Mapping[int, socket.socket],
    unsent: Mapping[int, bytearray],
) -> None:
    """Say goodbye to every rank and close all sockets, in the process that made them alone."""
    for other, peer in peers.items() if os.getpid() == maker else ():
        with suppress(OSError):  # it has left before
            peer.settimeout(SLICE)
            peer.sendall(bytes(unsent[other]) + framed(Record.LEFT))
    for one in sockets:
        one.close()

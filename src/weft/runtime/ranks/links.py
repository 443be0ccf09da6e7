"""Links: this rank's connections, what comes over them, and who has left or failed.

    record for this rank     to whoever handles its kind
    news                     first passed on along the tree, then handled as if their origin had
                             sent them here
    failure                  to every connection, once

Any thread may take what comes, one at a time. Knows no waits.
"""

from __future__ import annotations

import select
import socket
import weakref
from collections.abc import Callable, Mapping, Sequence
from threading import RLock

from weft.runtime.ranks.blame import DEVICE
from weft.runtime.ranks.peer import Peer
from weft.runtime.ranks.records import EVERYBODY, FRAME, News, Record, RecordHandler, framed
from weft.runtime.ranks.sleepers import Sleeper, Sleepers
from weft.runtime.ranks.tree import Tree

CHUNK = 1 << 16
SLICE = 1.0  # seconds between two looks at the clock


class Handlers(dict[int, RecordHandler]):
    """Who takes which kind of record; unlike a plain dict it can be known weakly."""


class Links:
    """The connections of a rank, some of them along the tree; those for open files are apart.

    `left` are the ranks that nothing more comes from; `deadline` as the mesh has it; `on_failure`
    is called once, with the reason.
    """

    def __init__(
        self, tree: Tree, peers: Mapping[int, socket.socket], files: Mapping[int, socket.socket]
    ) -> None:
        self.tree, self.rank, self._files = tree, tree.rank, files
        self.peers = {other: Peer(connection) for other, connection in peers.items()}
        self.open, self.left = set(peers), set[int]()
        self.failure: str | None = None
        self.deadline: float | None = None
        self.noun = DEVICE
        self.on_failure: Callable[[str], None] = _ignore
        self.has_left = False
        self._has_said_goodbye = False
        self.sleepers = Sleepers(self.peers, self.open)
        self._handlers: Callable[[], Handlers | None] = _nobody
        self._by_file = {peer.file: other for other, peer in self.peers.items()}
        self._said = set[int]()  # peers that have said on their own connection that they leave
        self._reported = set[int]()  # ranks that have left, by the news
        # Taken in this order; handlers run with the first.
        self.receiving, self._failing = RLock(), RLock()

    def deliver(self, handlers: Handlers) -> None:
        """Let these take records from now on, for as long as somebody knows them."""
        self._handlers = weakref.ref(handlers)

    # sending

    def post(self, other: int, frame: bytes) -> None:
        """Send a frame over a connection; what it does not take at once leaves with a `pump`."""
        if self.peers[other].post(frame):
            self.sleepers.watch_again()

    def spread(self, record: Record, content: bytes) -> None:
        """Send a record to all ranks."""
        frame = News(self.rank, EVERYBODY, record, content).framed()
        for link in self.tree.beyond:
            if link in self.open:
                self.post(link, frame)

    def route(self, other: int, record: Record, content: bytes) -> None:
        """Send a record to a rank that is not connected to this one."""
        news = News(self.rank, other, record, content)
        self.post(self.tree.toward(other), news.framed())

    def fail(self, text: str) -> None:
        """Report a failure over every connection, the first time that there is one."""
        with self._failing:
            if self.failure is not None:
                return
            self.failure = text
            self.sleepers.wake_all()
            for peer in self.peers.values():
                peer.push(framed(Record.FAILED, text.encode()), SLICE)
        self.on_failure(text)

    def learn(self, text: str) -> None:
        """The same of a failure elsewhere, which matters to nobody who has left."""
        if not self.has_left:
            self.fail(text)

    # receiving

    def pump(self, sleeper: Sleeper, seconds: float) -> bool:
        """Take what ranks have sent; wait at most that long for the first of it. Was there any?"""
        found = self.sleepers.poll(sleeper, seconds)
        for file, events in found:
            other = self._by_file[file]
            if events & select.POLLOUT and self.peers[other].send_rest():
                self.sleepers.watch_again()
            if events & ~select.POLLOUT:
                self.receive(other)
        return any(events & ~select.POLLOUT for _, events in found)

    def receive(self, other: int) -> None:
        """Take what came over a connection, without waiting; wake the threads that waited for it.

        Nothing comes over one that has ended.
        """
        peer = self.peers[other]
        with self.receiving:
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
        if self.sleepers.waiting:
            self.sleepers.wake()

    def _dispatched(self, other: int, received: bytes) -> int:
        """Hand whole records to their handlers; the bytes used."""
        records, used = _parted(received)
        if self.tree.passes_on and other in self.tree.beyond:
            # Before all else, so that whatever this rank knows goes on, though it may leave then.
            self._pass_on(other, [content for kind, content in records if kind == Record.NEWS])
        for kind, content in records:
            if kind != Record.NEWS:
                self._handle(kind, other, content, other)
                continue
            news = News.read(content)
            if news.destination in (EVERYBODY, self.rank):
                self._handle(news.record, news.origin, news.content, other)
        return used

    def _handle(self, kind: int, origin: int, content: bytes, other: int) -> None:
        """Of a record from one rank, over the connection to another or to itself."""
        if kind == Record.LEFT:
            self._note_left(origin, other)
        elif kind == Record.FAILED:
            self.fail(content.decode())  # so that nobody learns of this rank's end before
        elif (handlers := self._handlers()) is not None:
            handlers[kind](origin, content)

    def _pass_on(self, other: int, news: Sequence[bytes]) -> None:
        """Send on what came from a linked rank, all of it at once."""
        onward: dict[int, list[bytes]] = {link: [] for link in self.tree.beyond}
        for content in news:
            destination = News.read(content).destination
            if destination == EVERYBODY:
                for link, frames in onward.items():
                    if link != other:
                        frames.append(framed(Record.NEWS, content))
            elif destination != self.rank:
                onward[self.tree.toward(destination)].append(framed(Record.NEWS, content))
        for link, frames in onward.items():
            if frames and link in self.open:
                self.post(link, b"".join(frames))

    # ends

    def is_needed(self) -> bool:
        """Whether ranks that have not left learn of each other over this one."""
        beyond = self.tree.beyond.values() if self.tree.passes_on else ()
        sides = sum(not side <= self._reported for side in beyond)
        return sides > 1 and self.failure is None

    def is_over(self) -> bool:
        """Whether this rank has said goodbye to every other, and none needs it any more."""
        return self._has_said_goodbye and not self.is_needed()

    def remaining(self) -> set[int]:
        """The other ranks that have not left."""
        return set[int]().union(*self.tree.beyond.values()) - self._reported

    def leave(self) -> None:
        """Say goodbye to every rank; the tree's connections stay open while others need them."""
        with self.receiving:  # what another thread has handled is passed on by now
            if self.has_left:
                return
            self.has_left, self._handlers = True, _nobody
        news = News(self.rank, EVERYBODY, Record.LEFT, b"").framed()
        try:
            for other, peer in self.peers.items():
                peer.push(news if other in self.tree.beyond else framed(Record.LEFT), SLICE)
        finally:
            self._has_said_goodbye = True  # not before: whoever sees it may close all
            self._close(set(self.tree.beyond) if self.is_needed() else set())

    def close(self) -> None:
        """Close all that is open, without a word."""
        self.has_left = self._has_said_goodbye = True
        self._handlers = _nobody
        self._close(set())

    def close_in_child(self) -> None:
        """In a forked child, where no other thread goes on."""
        for peer in self.peers.values():
            peer.unlock()
        self.receiving, self._failing = RLock(), RLock()
        self.sleepers.close_in_child()
        self.close()

    def _close(self, kept: set[int]) -> None:
        self.open.intersection_update(kept)
        self.sleepers.watch_again()
        for other, peer in self.peers.items():
            if other not in kept:
                peer.close()
        for connection in self._files.values():
            connection.close()
        if not kept:
            self.sleepers.close()

    def _note_left(self, origin: int, other: int) -> None:
        """A rank leaves, as it says itself or as a linked one passes on.

        What it sent came before that on its own connection, and along the tree; so it counts when
        it has said so on both.
        """
        if origin == other:
            self._said.add(origin)
        if other in self.tree.beyond:
            self._reported.add(origin)
        if origin in self._reported and (origin in self._said or origin not in self.peers):
            self.left.add(origin)
            self.sleepers.wake_all()

    def _end(self, other: int) -> None:
        """A connection has ended: in good order, or the rank has died.

        One that passes news on ends in good order when all who are beyond it have left.
        """
        if other not in self.open:  # another thread has seen it, or closed this
            return
        self.open.discard(other)
        self.sleepers.watch_again()
        if other in self.tree.beyond:
            is_over = self.tree.beyond[other] <= self._reported
        else:
            is_over = other in self._said
        if not is_over:
            self.left.add(other)
            self.fail(f"{self.noun} {other} died")


def _ignore(text: str) -> None:
    """A failure that matters nowhere else."""


def _nobody() -> None:
    """Who handles records of a rank that has left."""


def _parted(received: bytes) -> tuple[list[tuple[int, bytes]], int]:
    """The whole records among some bytes, as kind and content, and the bytes that they take."""
    records, place, size = [], 0, FRAME.size
    while len(received) - place >= size:
        kind, length = FRAME.unpack_from(received, place)
        if len(received) - place - size < length:
            break
        records.append((kind, received[place + size : place + size + length]))
        place += size + length
    return records, place

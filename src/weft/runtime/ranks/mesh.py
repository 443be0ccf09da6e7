"""The mesh: stream sockets between ranks, for all that is small.

    rank 0 ── rank 1
      │  ╲  ╱  │         Unix sockets on one host, TCP between hosts
      │  ╱  ╲  │
    rank 2 ── rank 3

Where ranks are many, each has sockets to those with which it exchanges messages and to those beside
it in the tree, over which it reaches all others. Records are a kind and bytes; nothing is
unpickled. Whoever waits, waits here: a rank that fails, dies or leaves is noticed at once, and a
wait that takes too long ends with what it waited for.

Several threads of a rank may send and wait at the same time. Each takes what comes, also for the
others, one of them at a time; none keeps the others from that while it sleeps.
"""

from __future__ import annotations

import os
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType

from weft.errors import RankError
from weft.runtime.ranks.blame import named
from weft.runtime.ranks.forks import close_in_children
from weft.runtime.ranks.links import SLICE, Handlers, Links
from weft.runtime.ranks.records import Record, RecordHandler, framed
from weft.runtime.ranks.relay import listen, start_relay
from weft.runtime.ranks.sleepers import IsDone, Sleeper
from weft.runtime.ranks.tree import Tree, tree_of

GLANCE = 1e-3  # seconds between two looks at a device
BRIEF = 2e-4  # seconds of a wait in which this rank does not sleep


class Mesh:
    """This rank's sockets to others, and those for open files where they share a host.

    `deadline` bounds every wait, in seconds; None waits for as long as all ranks live. `occasion`
    is added where one is over. Without a tree all ranks are connected.
    """

    def __init__(
        self,
        rank: int,
        peers: Mapping[int, socket.socket],
        files: Mapping[int, socket.socket] = MappingProxyType({}),
        tree: Tree | None = None,
    ) -> None:
        self.tree = tree or tree_of(rank, len(peers) + 1)
        self.rank, self.ranks, self._files = rank, self.tree.ranks, files
        self.occasion = ""  # what all wait in, where that is worth saying
        self._links = Links(self.tree, peers, files)
        self._peers = self._links.peers
        others = (other for other in range(self.ranks) if other != rank)
        self._shares: dict[int, deque[bytes]] = {other: deque() for other in others}
        self._handlers = Handlers()
        self._links.deliver(self._handlers)
        self.handle(Record.GATHERED, lambda other, share: self._shares[other].append(share))
        self._ended: str | None = None  # why nothing is waited for here, though nobody failed
        self._closer = weakref.finalize(self, _leave, os.getpid(), self._links)
        close_in_children(self)
        start_relay(self._links)

    @property
    def deadline(self) -> float | None:
        return self._links.deadline

    @deadline.setter
    def deadline(self, seconds: float | None) -> None:
        self._links.deadline = seconds

    @property
    def noun(self) -> str:
        """What the numbers of this mesh are of."""
        return self._links.noun

    @noun.setter
    def noun(self, noun: str) -> None:
        self._links.noun = noun

    def fail_with(self, other: Mesh, where: str) -> None:
        """Let a failure here be one of another mesh, and the reverse; a thread listens for it.

        Where it names a device of this mesh, it is added which mesh that is.
        """
        own, others = self._links, other._links
        own.on_failure = lambda text: others.learn(text + where * text.startswith(own.noun))
        others.on_failure = own.learn
        listen(others)

    @property
    def _failure(self) -> str | None:
        return self._links.failure or self._ended

    def handle(self, record: Record, handler: RecordHandler) -> None:
        """Let a function take all records of a kind, in any thread, but one record at a time."""
        self._handlers[record] = handler

    def send(self, other: int, record: Record, content: bytes = b"") -> None:
        """Send a record; what the socket does not take at once leaves with the next `pump`."""
        if other in self._peers:
            self.post(other, framed(record, content))
        else:
            self._links.route(other, record, content)

    def post(self, other: int, frame: bytes) -> None:
        """The same with a record that is `framed` already, to a rank that is connected."""
        self._links.post(other, frame)

    def give(self, other: int, file: int) -> None:
        """Give an open file to a rank of this host; a record should ask it to take it."""
        with suppress(OSError):  # it is gone, which the next wait notices
            socket.send_fds(self._files[other], [b"."], [file])

    def given(self, other: int) -> int:
        """The oldest file that a rank gave and that was not taken yet."""
        _, files, _, _ = socket.recv_fds(self._files[other], 1, 1, socket.MSG_CMSG_CLOEXEC)
        return files[0]

    def send_all(self, record: Record, content: bytes = b"") -> None:
        """Send a record to every other rank."""
        self._links.spread(record, content)

    def fail(self, text: str) -> None:
        """Report to every other rank that this one gives up; no wait of theirs outlives it.

        Nor does one of another thread here; whoever fails later returns when that was sent to all.
        """
        if self._ended is None:
            self._links.fail(text)

    def check(self) -> None:
        """Refuse to go on after a failure, here or elsewhere."""
        if self._failure is not None:
            raise RankError(self._failure)

    def receive(self, other: int) -> None:
        """Take what one rank has sent, without waiting; wake the threads that waited for it."""
        self._links.receive(other)

    def look(self) -> None:
        """Take what all ranks have sent by now; a failure may be among it."""
        sleeper = self._links.sleepers.enter(bool)
        try:
            self._take_all(sleeper)
        finally:
            self._links.sleepers.leave(sleeper)
        self.check()

    def _take_all(self, sleeper: Sleeper) -> None:
        with self._links.receiving:  # so that no other thread has taken something, not handled it
            while self._links.pump(sleeper, 0):
                pass

    def wait(self, is_done: IsDone, what: Callable[[], str], *sources: int) -> None:
        """Wait until something is so that depends on some ranks; any thread may ask `is_done`.

        What was sent before a failure counts, though the failure was received first.
        """
        began = time.monotonic()
        self._listen(is_done, began + BRIEF, sources)
        if is_done():
            return
        sleeper = self._links.sleepers.enter(is_done)
        try:
            while not is_done():
                if reason := self._failure or self._reason(began, sources):
                    self._take_all(sleeper)
                    if is_done():
                        return
                    raise self.blamed(reason, what())
                pause = SLICE if self.deadline is None else min(SLICE, self.deadline)
                self._links.pump(sleeper, pause)
        finally:
            self._links.sleepers.leave(sleeper)

    def watch(self, began: float, what: str, *sources: int) -> None:
        """The same without waiting, for something that ranks do by other means since then."""
        with suppress(RankError):
            self.look()
        if reason := self._failure or self._reason(began, sources):
            raise self.blamed(reason, what)

    def wait_for_device(self, is_done: IsDone, what: Callable[[], str], *sources: int) -> None:
        """Wait until a device has come so far, as long as all ranks live."""
        began = time.monotonic()
        while not is_done():
            self.watch(began, what(), *sources)
            time.sleep(GLANCE)

    def _reason(self, began: float, sources: Iterable[int]) -> str | None:
        """Why a wait should not go on."""
        if gone := self._links.left.intersection(sources):
            return f"{self.noun} {min(gone)} has left"
        if self.deadline is not None and time.monotonic() - began > self.deadline:
            return f"nothing came within the deadline of {self.deadline:g} s{self.occasion}"
        return None

    def _listen(self, is_done: IsDone, until: float, sources: Iterable[int]) -> None:
        """Poll for a moment: sleeping and waking takes longer than most waits."""
        while not is_done() and not self._failure and self._links.open.issuperset(sources):
            for source in sources:
                self.receive(source)
            if time.monotonic() > until:
                return
            os.sched_yield()

    def blamed(self, cause: object, what: str) -> RankError:
        """Why a wait ended, and what it was for."""
        return RankError(f"{cause}; {self.noun} {self.rank} was waiting for {what}")

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
        self._finish_sending(what)
        return shares

    def _finish_sending(self, what: str) -> None:
        """Wait until sockets have taken all: nothing leaves while a rank waits for a transport."""
        for other, peer in self._peers.items():
            if peer.unsent:
                self.wait(
                    lambda: not peer.unsent,  # noqa: B023
                    lambda: f"{self.noun} {other} to take {what}",  # noqa: B023
                    other,
                )

    def _silent(self, first: int) -> str:
        """Whose shares of a gathering have not come, from this rank on."""
        after = (other for other in range(first, self.ranks) if other != self.rank)
        return named((other for other in after if not self._shares[other]), self.noun)

    def close(self) -> None:
        """Leave in good order; whatever another thread waits for ends."""
        self._ended = self._ended or "this pipeline is closed: make another one to go on"
        self._links.sleepers.watch_again()
        self._closer()

    def close_in_child(self) -> None:
        self._ended = f"this process was forked from device {self.rank}, which alone can go on"
        self._links.close_in_child()


def _leave(owner: int, links: Links) -> None:
    """Say goodbye to every rank, in the process that made the connections alone."""
    if os.getpid() == owner:
        links.leave()
    else:
        links.close()

"""The door: where a rank waits for others to connect, and turns strangers away.

Whoever connects sends a proof of which rank it is; until that is here nobody waits for it, so that
strangers delay no one. On one host the kernel also knows whose process it is.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

from weft.errors import RankError
from weft.runtime.ranks.keys import PROOF_SIZE

HELLO = struct.Struct(f"<II{PROOF_SIZE}s")  # rank, purpose, proof
CREDENTIALS = struct.Struct("iII")  # process, user and group at the other end
BACKLOG = 1024
MOST_GUESTS = 256  # that have not shown who they are
PAUSE = 0.05  # seconds before asking again
PATIENCE = 60.0  # seconds for an open file to be handed over
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}  # a lost host is noticed


class Connection(NamedTuple):
    """A connection of a rank: which rank's, and what it carries."""

    rank: int
    purpose: int

    def words(self, listener: int) -> bytes:
        """What is proved by whoever opens it."""
        return struct.pack("<III", self.rank, self.purpose, listener)


class Door:
    """A listening socket, and those who came and have not shown who they are.

    `proofs` has the proof of each connection that may be opened here.
    """

    def __init__(self, listener: socket.socket, proofs: dict[Connection, bytes]) -> None:
        self._listener, self._proofs = listener, proofs
        self._guests: dict[int, tuple[socket.socket, bytearray]] = {}
        self._poll = select.poll()
        listener.setblocking(False)
        self._poll.register(listener, select.POLLIN)

    def admitted(self, seconds: float) -> Iterator[tuple[Connection, socket.socket]]:
        """Those who have shown who they are; waits at most that long for anyone to come."""
        while found := self._poll.poll(seconds * 1000):
            seconds = 0.0
            for file, _ in found:
                if file == self._listener.fileno():
                    self._let_in()
                elif (connection := self._identified(file)) is not None:
                    yield connection, _settled(self._parted(file))

    def close(self) -> None:
        for file in list(self._guests):
            self._parted(file).close()

    def _let_in(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:  # it has gone, or this process has too many files open
            self._turn_away_oldest()
            return
        if not is_own_user(peer):
            peer.close()
            return
        if len(self._guests) >= MOST_GUESTS:
            self._turn_away_oldest()
        peer.setblocking(False)
        self._guests[peer.fileno()] = peer, bytearray()
        self._poll.register(peer, select.POLLIN)

    def _identified(self, file: int) -> Connection | None:
        """Which connection a guest has proved to be; whoever says anything else is turned away."""
        guest, said = self._guests[file]
        try:
            received = guest.recv(HELLO.size - len(said))
        except BlockingIOError:
            return None
        except OSError:
            received = b""
        said += received
        if received and len(said) < HELLO.size:
            return None
        connection = self._proved(bytes(said)) if received else None
        if connection is None:
            self._parted(file).close()
        return connection

    def _proved(self, hello: bytes) -> Connection | None:
        rank, purpose, proof = HELLO.unpack(hello)
        connection = Connection(rank, purpose)
        if not secrets.compare_digest(proof, self._proofs.get(connection, b"")):
            return None
        del self._proofs[connection]  # it is open now
        return connection

    def _turn_away_oldest(self) -> None:
        if self._guests:
            self._parted(next(iter(self._guests))).close()

    def _parted(self, file: int) -> socket.socket:
        guest, _ = self._guests.pop(file)
        self._poll.unregister(file)
        return guest


def is_own_user(peer: socket.socket) -> bool:
    """Whether a process of this user is at the other end, where the kernel knows it."""
    if peer.family != socket.AF_UNIX:
        return True
    found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _, user, _ = CREDENTIALS.unpack(found)
    return bool(user == os.geteuid())


# listening


def listening_near() -> socket.socket:
    """A Unix socket that the kernel names; elsewhere than on Linux one that nobody uses."""
    if not hasattr(os, "memfd_create"):
        return socket.socket()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("")
    listener.listen(BACKLOG)
    return listener


def listening_far(ip: str) -> socket.socket:
    listener = socket.socket()
    listener.bind((ip, 0))
    listener.listen(BACKLOG)
    return listener


# connecting


def connected(place: bytes | tuple[str, int], until: float | None) -> socket.socket:
    """A connection to a door; a full one is asked again until then."""
    while True:
        left = None if until is None else max(PAUSE, until - time.monotonic())
        peer = socket.socket(socket.AF_UNIX if isinstance(place, bytes) else socket.AF_INET)
        peer.settimeout(left)
        try:
            peer.connect(place)
        except BlockingIOError:  # a Unix socket at which too many wait
            peer.close()
            if until is not None and time.monotonic() > until:
                raise
            time.sleep(PAUSE)
            continue
        except BaseException:
            peer.close()
            raise
        if not is_own_user(peer):
            peer.close()
            raise RankError("another user's process listens where a rank said that it would")
        return _settled(peer)


def is_closed(place: bytes | tuple[str, int]) -> bool:
    """Whether nobody listens at a door any more."""
    with socket.socket(socket.AF_UNIX if isinstance(place, bytes) else socket.AF_INET) as probe:
        probe.settimeout(PAUSE)
        try:
            probe.connect(place)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False  # it is full, or far away
        return False


def _settled(peer: socket.socket) -> socket.socket:
    """The connection as a mesh wants it."""
    peer.settimeout(PATIENCE)
    if peer.family == socket.AF_INET:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE.items():
            if hasattr(socket, option):
                peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return peer

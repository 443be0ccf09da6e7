"""Peers: the connection to another rank, which several threads of this one may write to."""

from __future__ import annotations

import select
import socket
import time
from threading import Lock


class Peer:
    """A socket that never blocks, and what it has not taken yet.

    Frames leave whole and in the order in which they are posted, whichever threads post them.
    """

    __slots__ = ("_lock", "begun", "file", "socket", "unsent")

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket, self.file = connection, connection.fileno()
        self.begun = b""  # a record of which the end has not come
        self.unsent = bytearray()
        self._lock = Lock()

    def post(self, frame: bytes) -> bool:
        """Send a frame after all others; whether from now on there is a rest to send."""
        with self._lock:
            if self.unsent:
                self.unsent += frame
                return False
            try:
                sent = self.socket.send(frame)
            except BlockingIOError:
                sent = 0
            except OSError:
                return False  # it is gone, which the next wait notices
            if sent == len(frame):
                return False
            self.unsent += frame[sent:]
            return True

    def send_rest(self) -> bool:
        """Send what the socket takes now; whether nothing is left."""
        with self._lock:
            try:
                del self.unsent[: self.socket.send(self.unsent)]
            except BlockingIOError:
                return False
            except OSError:
                self.unsent.clear()
            return not self.unsent

    def push(self, frame: bytes, seconds: float) -> None:
        """Send all that is left and a last frame, and wait at most that long for room."""
        with self._lock:
            rest, until = bytes(self.unsent) + frame, time.monotonic() + seconds
            self.unsent.clear()
            try:
                while rest := rest[self._sent(rest, until) :]:
                    pass
            except OSError:
                return  # gone already

    def _sent(self, rest: bytes, until: float) -> int:
        try:
            return self.socket.send(rest)
        except BlockingIOError:
            room = select.poll()
            room.register(self.socket, select.POLLOUT)
            if not room.poll(max(0.0, until - time.monotonic()) * 1000):
                self.socket.shutdown(socket.SHUT_WR)  # nothing may follow half a record
            return 0

    def unlock(self) -> None:
        """In a forked child: forget a thread that was sending and does not exist there."""
        self._lock = Lock()

    def close(self) -> None:
        self.socket.close()

"""The live page: a server for one reader on this machine.

It answers only those who call it by its own name, so that no other page can reach it through a
name that points here; it reads a bounded amount in a bounded time, computes one answer at a time
and beside it one that may take long, and executes nothing that it is sent. Every request gets an
answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6, SHUT_WR
from threading import Lock
from time import monotonic
from traceback import print_exc
from typing import Any

from weft.errors import InputError, WeftError
from weft.web.answers import ANSWERS, catalogue
from weft.web.page import assembled
from weft.web.questions import length_of, read_question

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")  # what a browser may call it
PATIENCE = 30.0  # seconds in which a question must be asked
SMALL = 1 << 20  # bytes of a question that need not wait until another has been read
PIECE = 1 << 16  # bytes that are read at once
SLOW = ("/plot", "/synthesis", "/helps", "/fit")  # questions that hold up no other
LINGER = 5.0  # seconds without a byte after which nobody is sending any more


class Server(ThreadingHTTPServer):
    """Listens on a host and a port; port 0 is any that is free.

    given  descriptions that the page asks with first, as if their files were dropped on it
    """

    daemon_threads = True

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        given: Sequence[Mapping[str, object]] = (),
    ) -> None:
        self.lock, self.slow, self.reading = Lock(), Lock(), Lock()
        if ":" in host:
            self.address_family = AF_INET6
        super().__init__((host, port), _Handler)
        self.host, self.port = host, int(self.server_address[1])
        live = {**catalogue(), "given": [*given]}
        self.page = assembled({"timelines": [], "live": live}).encode()

    def server_close(self) -> None:
        """Listen no more; what is being synthesised comes to its end, which is near."""
        super().server_close()
        self.slow.acquire(timeout=PATIENCE)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader who leaves before the answer is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        """Where a browser finds it."""
        return f"http://{_bracketed(self.host)}:{self.port}/"

    def knows(self, host: str | None) -> bool:
        """Whether a name is one of the server's own."""
        own = _bracketed(self.host)
        names = LOOPBACK if own in LOOPBACK else (own,)
        return host in {f"{name}:{self.port}" for name in names}

    def is_own(self, origin: str | None) -> bool:
        """Whether a page that asks is the server's own, if a page asks at all."""
        return origin is None or self.knows(origin.partition("://")[2])


def _bracketed(host: str) -> str:
    """As an address writes it."""
    return f"[{host}]" if ":" in host else host


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = PATIENCE
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer waits for no acknowledgement
    server_version, sys_version = "weft", ""

    def finish(self) -> None:
        """End the connection once nobody sends: who still did would never see the answer."""
        end = monotonic() + PATIENCE
        with suppress(OSError):
            self.connection.shutdown(SHUT_WR)
            self.connection.settimeout(LINGER)
            while monotonic() < end and self.connection.recv(PIECE):
                pass
        super().finish()

    def do_GET(self) -> None:
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # nobody reads what follows
        if not self._is_welcome():
            return
        if self.path in ("/", "/index.html"):
            self._send(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing here but the page itself: /")

    def do_POST(self) -> None:
        if not self._is_welcome():
            return
        answer = ANSWERS.get(self.path)
        if answer is None:
            self._refuse(HTTPStatus.NOT_FOUND, "no such question")
            return
        try:
            asked = self._asked()
            with self.server.slow if self.path in SLOW else self.server.lock:
                content = json.dumps(answer(asked), allow_nan=False).encode()
        except WeftError as error:
            self._refuse(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
            return
        except ConnectionError:  # the reader has left
            raise
        except Exception as error:
            print_exc()
            reason = f"the server failed: {type(error).__name__}; its terminal says more"
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, reason)
            return
        self._send(HTTPStatus.OK, content, "application/json")

    def _is_welcome(self) -> bool:
        """Whether it was called by its own name, and by its own page if by any."""
        is_known = self.server.knows(self.headers.get("Host"))
        if is_known and self.server.is_own(self.headers.get("Origin")):
            return True
        self._refuse(HTTPStatus.FORBIDDEN, "this server answers its own page only")
        return False

    def _asked(self) -> Mapping[str, object]:
        """The question; what another page can send without asking first is refused."""
        if self.headers.get_content_type() != "application/json":
            raise self._unread("questions are JSON")
        try:
            length = length_of(self.headers.get("Content-Length", ""))
        except InputError as error:
            raise self._unread(str(error)) from None
        with nullcontext() if length <= SMALL else self.server.reading:
            return read_question(self._body(length))

    def _body(self, length: int) -> bytes:
        """All that was announced, if it comes in time."""
        end, body = monotonic() + PATIENCE, bytearray()
        while len(body) < length:
            piece = self._piece(min(PIECE, length - len(body)))
            if not piece or monotonic() > end:
                raise self._unread("the question ends early, or takes too long")
            body += piece
        return bytes(body)

    def _piece(self, most: int) -> bytes:
        """What has come, in bytes; nothing where nothing comes."""
        with suppress(TimeoutError):
            return self.rfile.read1(most)
        return b""

    def _unread(self, reason: str) -> InputError:
        """What was sent stays unread, so the connection cannot be used again."""
        self.close_connection = True
        return InputError(reason)

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        if self.command == "POST" and status is not HTTPStatus.UNPROCESSABLE_ENTITY:
            self.close_connection = True
        self._send(status, json.dumps({"refused": reason}).encode(), "application/json")

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the reader has a page to look at."""

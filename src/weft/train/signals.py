"""Signals that end a process, but not before it has cleared up what it was doing.

clearing_up   at once, as an exception does
heeding       at the next good moment: whoever works asks whether a signal has come
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeAlias

ENDING = (signal.SIGTERM, signal.SIGHUP)
ASKING = (signal.SIGTERM, signal.SIGINT)  # as Slurm, Kubernetes, torchrun and a terminal send them
SAME = 1.0  # seconds: a terminal signals everybody, and torchrun once more all of its ranks

Handler: TypeAlias = Callable[[int, FrameType | None], Any] | int | None


@contextmanager
def clearing_up() -> Iterator[None]:
    """Let these signals end what is done here as an exception does, with the usual status.

    Those that are ignored, or handled by somebody else, stay so.
    """
    taken = _usual(ENDING)

    def end(number: int, _: object) -> None:
        for one in taken:
            signal.signal(one, signal.SIG_IGN)  # once is enough
        raise SystemExit(128 + number)

    with _handled_by(end, taken):
        yield


class EndRequest:
    """Whether this process was asked to end, and by which signal.

    The first signal is noted, and passed on to whoever works; a second one ends this process at
    once, and so does the first while nobody works yet.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.pass_on: Callable[[], None] | None = None
        self._at = 0.0

    def take(self, number: int, _: object) -> None:
        """Handle a signal."""
        now = time.monotonic()
        if self.pass_on is None or (self.number is not None and now > self._at + SAME):
            raise SystemExit(128 + number)
        if self.number is None:
            self.number, self._at = number, now
            self.pass_on()


@contextmanager
def heeding() -> Iterator[EndRequest]:
    """Signals that ask this process to end are noted here; whoever works asks whether one came."""
    request = EndRequest()
    with _handled_by(request.take, _usual(ASKING)):
        yield request


def noted() -> None:
    """Nothing has to be done at once: whoever works will ask."""


def _usual(numbers: tuple[signal.Signals, ...]) -> list[signal.Signals]:
    """Those that nobody ignores or handles, where this thread may."""
    if threading.current_thread() is not threading.main_thread():
        return []
    usual = (signal.SIG_DFL, signal.default_int_handler)
    return [one for one in numbers if signal.getsignal(one) in usual]


@contextmanager
def _handled_by(handler: Handler, numbers: list[signal.Signals]) -> Iterator[None]:
    before = {one: signal.signal(one, handler) for one in numbers}
    try:
        yield
    finally:
        for one, usual in before.items():
            signal.signal(one, usual)

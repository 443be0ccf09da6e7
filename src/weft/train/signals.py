"""Signals that end a process, but not before it has cleared up what it was doing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def clearing_up() -> Iterator[None]:
    """Let these signals end what is done here as an exception does, with the usual status.

    Those that are ignored, or handled by somebody else, stay so.
    """
    is_main = threading.current_thread() is threading.main_thread()
    taken = [one for one in ENDING if is_main and signal.getsignal(one) == signal.SIG_DFL]

    def end(number: int, _: object) -> None:
        for one in taken:
            signal.signal(one, signal.SIG_IGN)  # once is enough
        raise SystemExit(128 + number)

    for one in taken:
        signal.signal(one, end)
    try:
        yield
    finally:
        for one in taken:
            signal.signal(one, signal.SIG_DFL)

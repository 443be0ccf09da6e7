"""Strikes: what happens to this process at a moment of a phase.

A moment is a call of the user's code, or of any function of Weft's runtime, in any thread that
begins in the phase, or a millisecond, whatever the process does or waits for then. Where the phase
is over before, it happens at the phase's end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import weft.runtime

REASON = "struck on purpose"
STATUS = 3  # of a process that exits

RUNTIME = str(Path(weft.runtime.__file__).parent) + os.sep
CONNECTING = tuple(f"{RUNTIME}{folder}{os.sep}" for folder in ("ranks", "transport"))


def note(file: Path, what: str) -> None:
    """Write down what happens now; the file is there with all of it, or not at all."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps({"when": time.monotonic(), "what": what}))
    part.rename(file)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def fail() -> None:
    raise RuntimeError(REASON)


def interrupt() -> None:
    raise KeyboardInterrupt(REASON)


def leave() -> None:
    sys.exit(STATUS)


def end() -> None:
    os._exit(STATUS)


KINDS: Mapping[str, Callable[[], None]] = {
    "kill": kill,
    "stop": stop,
    "raise": fail,
    "exit": leave,
    "end": end,
}
RAISING = (fail, interrupt, leave)  # which happens to main threads alone, as signals do


class Strike:
    """Counts the moments of one phase, and does it at the one that is asked for.

    `mark` is the file that says when, and at what; `phase` may be None for a process that
    nothing happens to.
    """

    def __init__(
        self, phase: str | None, place: str, moment: int, act: Callable[[], None], mark: Path
    ) -> None:
        self._phase, self._place, self._left = phase, place, moment
        self._act, self._mark, self._is_armed = act, mark, False
        self._lock = threading.Lock()

    def __deepcopy__(self, _: Any) -> Strike:
        return self  # copies of a stage count together

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens meanwhile, if it is the phase that was asked for."""
        if name != self._phase:
            yield
            return
        self._is_armed = True
        timer = threading.Timer(self._left / 1000, self._now, ["some time"])
        if self._place == "clock":
            timer.start()
        self._profile(self._called)
        try:
            yield
        finally:
            self._profile(None)
            timer.cancel()
        self._now(f"the end of {name}")

    def user(self, what: str) -> None:
        """A call of the user's code."""
        if self._place == "user":
            self._count(what)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        """A call of any function, in Weft or elsewhere."""
        if event == "call" and self._is_watched(frame.f_code.co_filename):
            self._count(f"{frame.f_code.co_filename[len(RUNTIME) :]}:{frame.f_code.co_qualname}")

    def _is_watched(self, file: str) -> bool:
        if not file.startswith(RUNTIME):
            return False
        if self._phase in ("start-up", "connecting"):  # both while the pipeline is made
            return file.startswith(CONNECTING) == (self._phase == "connecting")
        return True

    def _count(self, what: str) -> None:
        if self._left == 0:
            self._now(what)
        self._left -= self._is_armed

    def _now(self, what: str) -> None:
        with self._lock:
            is_first, self._is_armed = self._is_armed, False
        if not is_first:
            return
        self._profile(None)
        note(self._mark, what)
        self._act()

    def _profile(self, function: Callable[[FrameType, str, Any], None] | None) -> None:
        if self._place == "weft":
            sys.setprofile(function)
            if self._act not in RAISING:
                threading.setprofile(function)

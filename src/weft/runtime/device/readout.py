"""Readouts: numbers that a device computes, handed on when they are there.

    host      launches a loss and its copy to the host, and goes on
    device                 ... computes it ...
    watcher                                     hands it to all who wait for it

A thread watches, as other ranks wait for what this one computes while its host launches, or waits
itself. On a CPU numbers are there at once.
"""

from __future__ import annotations

import atexit
import time
import weakref
from collections import deque
from collections.abc import Callable
from threading import Condition, Lock, Thread
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from weft.runtime.device.place import current, current_device

GLANCE = 2e-4  # seconds between two looks at a device
LINGER = 1.0  # seconds for which the watcher waits for more
PATIENCE = 5.0  # seconds for it to end

Then: TypeAlias = Callable[[list[float]], None]
Look: TypeAlias = Callable[[float, str], None]  # since when, and for what, it is waited


_OPEN: weakref.WeakSet[Readouts] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """A thread that wakes up while torch goes would bring the process down."""
    for readouts in [*_OPEN]:
        readouts.close()


class AnyEvent(Protocol):
    def query(self) -> bool:
        """Whether the device has reached it."""


class Readout(NamedTuple):
    """Numbers on their way to the host."""

    values: Tensor
    event: AnyEvent
    then: Then


class Readouts:
    """The numbers of a process that are under way, in order.

    `look` raises while somebody waits for a number that will never come. Where nobody watches, they
    are handed on when somebody asks.
    """

    def __init__(self, look: Look = lambda since, what: None, *, is_watched: bool = False) -> None:
        self._look, self._is_watched = look, is_watched
        self._pending: deque[Readout] = deque()
        self._taking, self._changed = Lock(), Condition()
        self._watcher: Thread | None = None
        self._failure: Exception | None = None  # of the watcher
        self._is_closed = False
        _OPEN.add(self)

    def add(self, values: Tensor, then: Then) -> None:
        """Call `then` with these once they are there."""
        self._check()
        launched = self._launch(values)
        if launched is None:
            then(values.tolist())
            return
        self._pending.append(Readout(*launched, then))
        if self._is_watched:
            self._let_watch()
        else:
            self._hand_on()  # else what nobody asks for would pile up

    def settle(self, what: str) -> None:
        """Wait until all numbers that were launched so far have been handed on."""
        began = time.monotonic()
        while self._pending:
            self._check()
            self._hand_on()
            if self._pending:
                self._look(began, what)
                time.sleep(GLANCE)

    def close(self) -> None:
        """Watch no more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._watcher is not None:
            self._watcher.join(PATIENCE)

    def _launch(self, values: Tensor) -> tuple[Tensor, AnyEvent] | None:
        """A copy on the host, and the event after which it is one; None where values are there."""
        if not values.is_cuda:
            return None
        host = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
        host.copy_(values, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(values.device))
        return host, event

    def _hand_on(self) -> None:
        """Hand on what is there."""
        with self._taking:
            while self._pending and self._pending[0].event.query():
                found = self._pending[0]
                found.then(found.values.tolist())
                self._pending.popleft()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _let_watch(self) -> None:
        with self._changed:
            self._changed.notify_all()
            if self._watcher is None and not self._is_closed:
                self._watcher = Thread(target=self._watch, args=(current_device(),), daemon=True)
                self._watcher.start()

    def _watch(self, device: torch.device) -> None:
        """As long as something is under way, and some time longer; whoever asks learns why not."""
        try:
            with current(device):
                while self._is_needed():
                    self._hand_on()
                    time.sleep(GLANCE)
        except Exception as error:
            self._failure = error

    def _is_needed(self) -> bool:
        """Whether something is under way, or will be soon."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._is_closed, LINGER)
            if self._is_closed or not self._pending:
                self._watcher = None
                return False
            return True

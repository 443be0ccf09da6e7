"""Clocks: when every action of a run began and ended, on one time for all ranks.

On a CPU an action is over when its call returns. On a GPU it runs later, so that events on its
stream say when.
"""

from __future__ import annotations

import struct
import time
import weakref
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any, TypeAlias

from weft.errors import InputError
from weft.runtime.device.accelerator import Accelerator
from weft.runtime.ranks.mesh import Mesh
from weft.runtime.ranks.records import Record

PINGS = 32
TIME = struct.Struct("<d")

Stamp: TypeAlias = Any  # seconds, or an event of a device


class Recording:
    """What this process ran and when: rows of a program, each in some lap.

    On an accelerator nothing is waited for until somebody asks.
    """

    def __init__(self, accelerator: Accelerator | None = None, *, is_kept: bool = True) -> None:
        self.log: list[tuple[int, int, Stamp, Stamp]] = []  # row, lap, start and end
        self.now: Callable[[], Stamp] = time.perf_counter
        self._accelerator, self._is_kept = accelerator, is_kept
        self._ends: weakref.WeakMethod[Callable[[], None]] | None = None
        if accelerator is not None:
            self.now = accelerator.now if is_kept else _never
            if is_kept:
                weakref.finalize(self, _give_back, accelerator, self.log).atexit = False

    def begin(self) -> None:
        """Before a walk: launches go where the user wants them."""
        if self._accelerator is not None:
            self._accelerator.begin()

    def end_with(self, finish: Callable[[], None]) -> None:
        """Something of it still runs, and has ended once this method of an object returns."""
        self._ends = weakref.WeakMethod(finish)

    def seconds(self) -> Iterator[tuple[int, int, float, float]]:
        """Row, lap, start and end in seconds of this process's clock."""
        finish = None if self._ends is None else self._ends()
        if finish is not None:
            finish()
        if self._accelerator is None:
            yield from self.log
            return
        if not self._is_kept:
            raise InputError(
                "nothing was recorded: on a GPU a pipeline has timelines where it is made with"
                " record=True"
            )
        if not self.log:
            return
        since, first = self._accelerator.seconds, self.log[0][2]
        point, now = self._accelerator.clock()
        origin = now - since(first, point)
        for row, lap, start, end in self.log:
            yield row, lap, origin + since(first, start), origin + since(first, end)


def _never() -> None:
    """Nothing is recorded."""


def _give_back(accelerator: Accelerator, log: list[tuple[int, int, Stamp, Stamp]]) -> None:
    accelerator.take_back(point for entry in log for point in entry[2:])


def offset(mesh: Mesh) -> float:
    """What to add to this rank's clock to have that of rank 0; all ranks call this.

    A rank asks its parent in the tree, which answers with the time of rank 0 as soon as it knows
    it. Of each step up the tree the round trip of least length is off by half of it at most.
    """
    parent, clock = mesh.tree.parent, _SharedClock(mesh)
    mesh.gather(b"", "the start of setting clocks")
    found = 0.0 if parent is None else _asked(mesh, parent, clock.answers)
    clock.set(found)
    mesh.gather(b"", "the end of setting clocks")
    return found


def _asked(mesh: Mesh, parent: int, answers: list[float]) -> float:
    """What the parent's time is ahead of this rank's, by the quickest of some round trips."""
    best, found = float("inf"), 0.0
    for _ in range(PINGS):
        sent = time.perf_counter()
        mesh.send(parent, Record.PING)
        mesh.wait(lambda: bool(answers), lambda: f"the time of device {parent}", parent)
        received = time.perf_counter()
        if received - sent < best:
            best, found = received - sent, answers[-1] - (sent + received) / 2
        answers.clear()
    return found


class _SharedClock:
    """Answers whoever asks with the time of rank 0, once this rank knows it."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh, self._offset = mesh, None if mesh.rank else 0.0
        self._asking: list[int] = []
        self._lock = Lock()  # as any thread may take a question
        self.answers: list[float] = []
        mesh.handle(Record.PONG, lambda _, content: self.answers.append(TIME.unpack(content)[0]))
        mesh.handle(Record.PING, lambda other, _: self._answer(other))

    def set(self, offset: float) -> None:
        with self._lock:
            self._offset = offset
        for other in self._asking:
            self._answer(other)

    def _answer(self, other: int) -> None:
        with self._lock:
            if self._offset is None:
                self._asking.append(other)
                return
            now = time.perf_counter() + self._offset
        self._mesh.send(other, Record.PONG, TIME.pack(now))

"""Exchange: how gloo's connections are made with the mesh as its store.

    gloo's thread    says where it listens, asks where others do, connects to them
    this thread      gathers that from all ranks, and watches whether they live

Gloo itself neither notices that a rank has died meanwhile, nor ends when it said it would.
"""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Sequence
from functools import partial
from threading import Event, Thread
from typing import Any, NoReturn, TypeVar

from torch._C._distributed_c10d import Store

from weft.runtime.ranks.blame import devices_of
from weft.runtime.ranks.mesh import Mesh

GLANCE = 0.02  # seconds between two looks at the mesh

Made = TypeVar("Made")


class Gathered(Store):
    """A store for a thread: what it asks for is gathered from all ranks by another one."""

    def __init__(self, ask: Callable[[], None]) -> None:
        super().__init__()
        self._ask, self._is_answered = ask, Event()
        self._mine: dict[str, str] = {}
        self._known: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        self._mine[key] = (value.encode() if isinstance(value, str) else bytes(value)).hex()

    def wait(self, keys: Sequence[str], *_: object) -> None:
        """Until all ranks have been asked, and as long as they do not know."""
        while not all(key in self._known for key in keys):
            self._is_answered.clear()
            self._ask()
            self._is_answered.wait()

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._known[key]

    def answer(self, mesh: Mesh, *, is_done: bool = False) -> bool:
        """Gather what all ranks have set, and whether all of them are done; all ask."""
        mine = json.dumps([is_done, self._mine]).encode()
        found = [json.loads(share) for share in mesh.gather(mine, "the addresses")]
        for _, theirs in found:
            self._known |= {key: bytes.fromhex(value) for key, value in theirs.items()}
        self._is_answered.set()
        return all(is_done for is_done, _ in found)


class StorePart(Store):
    """A part of a store, whose keys begin with a name."""

    def __init__(self, store: Store, name: str) -> None:
        super().__init__()
        self._store, self._name = store, name

    def set(self, key: str, value: Any) -> None:
        self._store.set(self._name + key, value)

    def wait(self, keys: Sequence[str], *_: object) -> None:
        self._store.wait([self._name + key for key in keys])

    def get(self, key: str) -> bytes:
        return self._store.get(self._name + key)


def connected(mesh: Mesh, make: Callable[[Store], Made]) -> Made:
    """What is made with such a store on all ranks; a rank that dies meanwhile is named."""
    news: queue.Queue[Callable[[], Made | None]] = queue.Queue()
    store = Gathered(lambda: news.put(lambda: _answered(store, mesh)))
    _start(make, store, news)
    began, others = time.monotonic(), others_of(mesh)
    while True:
        try:
            found = news.get(timeout=GLANCE)()
        except queue.Empty:
            mesh.watch(began, connecting(others), *others)
            continue
        if found is not None:
            return found


def connected_in_turn(mesh: Mesh, make: Callable[[Store], Made]) -> Made:
    """The same where ranks have more or less to make: each answers until all of them are done."""
    news: queue.Queue[Callable[[], Made] | None] = queue.Queue()
    store = Gathered(lambda: news.put(None))
    _start(make, store, news)
    began, others, is_over, found = time.monotonic(), others_of(mesh), False, None
    while not is_over:
        try:
            found = found or news.get(timeout=GLANCE)
        except queue.Empty:
            mesh.watch(began, connecting(others), *others)
            continue
        made = found and found()  # or it fails here, and all others with it
        is_over = store.answer(mesh, is_done=found is not None)
    assert made is not None
    return made


def _start(make: Callable[[Store], Made], store: Store, news: queue.Queue[Any]) -> None:
    """Make something on a thread; what gives it, or raises what went wrong, is put into a queue."""

    def work() -> None:
        try:
            made = make(store)
            news.put(lambda: made)
        except Exception as error:
            news.put(partial(_raised, error))

    Thread(target=work, daemon=True).start()


def others_of(mesh: Mesh) -> list[int]:
    """All ranks but this one."""
    return [one for one in range(mesh.ranks) if one != mesh.rank]


def connecting(others: Sequence[int]) -> str:
    """What is waited for: gloo does not say whom it waits for."""
    return f"{devices_of(others)} to connect"


def _answered(store: Gathered, mesh: Mesh) -> None:
    store.answer(mesh)


def _raised(error: Exception) -> NoReturn:
    raise error

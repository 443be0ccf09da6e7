"""Communicators of NCCL, made and connected once, before anything is launched on them.

NCCL connects two ranks at their first exchange, and blocks the host of each until the other joins.
So all pairs are connected at once, in one order on all ranks, by a thread; this one watches whether
all ranks live.

Groups are known to this run alone. Those of `dist.new_group` have names: for some of the ranks, of
these and of how many groups there are, so that a group which is made after another was destroyed
may find the addresses of that one in torch's store, where nobody listens any more.
"""

from __future__ import annotations

import atexit
import datetime
import os
import queue
import signal
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event, Thread, current_thread, main_thread
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import distributed_c10d

from weft.errors import RankError
from weft.runtime.device.place import current, current_device
from weft.runtime.ranks.blame import devices_of
from weft.runtime.ranks.mesh import Mesh
from weft.runtime.transport.under_way import UnderWay

GLANCE = 0.02  # seconds between two looks at the mesh
PAUSE = 0.5  # seconds between two looks of the guard
PATIENCE = 2.0  # seconds for NCCL to abort
GRACE = 3  # seconds for a process to end after that
NONE = -1  # in the place of a number
LONG = datetime.timedelta(hours=10)  # as the mesh knows better how long to wait
WHAT = "all ranks to connect over NCCL"
WATCHDOG = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}


class Communicators:
    """One for messages, one for sums of gradients; ranks are numbered as devices are."""

    def __init__(
        self, mesh: Mesh, device: torch.device, neighbours: Sequence[tuple[int, int]]
    ) -> None:
        self._device, self._begun = device, list[Any]()
        store = _store(mesh, "the start of NCCL")  # torch waits long for a rank that never comes
        try:
            self.wires, self.sums = _watched(mesh, lambda: self._made(mesh, store, neighbours))
        except BaseException:
            abort(self._begun)  # a kernel of theirs may wait for a rank that is gone
            raise

    def _made(
        self, mesh: Mesh, store: Store, neighbours: Sequence[tuple[int, int]]
    ) -> tuple[Any, Any]:
        torch.cuda.set_device(self._device)  # of this thread
        made = []
        for name in ("wires", "sums"):
            group = _group(PrefixStore(name, store), mesh.rank, mesh.ranks)
            made.append(group)
            self._begun.append(group)
            for low, high in neighbours:
                if mesh.rank in (low, high):
                    self._connect(group, low, high, mesh.rank)
        return made[0], made[1]

    def _connect(self, group: Any, low: int, high: int, rank: int) -> None:
        """One exchange each way."""
        token = torch.zeros(1, device=self._device)
        for source, destination in ((low, high), (high, low)):
            group._start_coalescing(self._device)
            if rank == source:
                group.send([token], destination, 0)
            else:
                group.recv([token], source, 0)
            group._end_coalescing(self._device).wait()
        _await_device(self._device)

    def abort(self) -> None:
        """End kernels that wait for other ranks."""
        abort(self._both)

    def close(self) -> None:
        """Leave no communicator open."""
        close(self._both)
        self.wires = self.sums = None

    @property
    def _both(self) -> list[Any]:
        return [group for group in (self.wires, self.sums) if group is not None]


class Abortable(Protocol):
    """What may have kernels that wait for other ranks."""

    def abort(self) -> None:
        """End them."""


class Guard:
    """Ends kernels that wait for a rank that has failed: a host may wait for its own device then.

    A thread looks now and then; it has nothing to do unless a rank fails, or what is the oldest
    under way stays so beyond the deadline: then the host may be in a launch that does not return.
    """

    def __init__(self, mesh: Mesh, communicators: Abortable, under_way: UnderWay) -> None:
        self._is_closed = Event()
        guarded = _Guarded(weakref.ref(mesh), weakref.ref(communicators), weakref.ref(under_way))
        work = partial(_watch, guarded, self._is_closed, current_device())
        Thread(target=work, daemon=True).start()

    def close(self) -> None:
        self._is_closed.set()


class _Guarded(NamedTuple):
    """What the thread looks at, and does not keep alive."""

    mesh: weakref.ref[Mesh]
    communicators: weakref.ref[Abortable]
    under_way: weakref.ref[UnderWay]


class _Seen(NamedTuple):
    """What was the oldest when the thread looked, and since when."""

    number: int
    since: float


def _watch(guarded: _Guarded, is_closed: Event, device: torch.device) -> None:
    seen: _Seen | None = _Seen(NONE, time.monotonic())
    with current(device):
        while seen is not None and not is_closed.wait(PAUSE):
            seen = _look(guarded, seen)


def _look(guarded: _Guarded, seen: _Seen) -> _Seen | None:
    """What is the oldest now; nothing where there is nothing to guard any more."""
    mesh, communicators, under_way = guarded.mesh(), guarded.communicators(), guarded.under_way()
    if mesh is None or communicators is None or under_way is None:
        return None
    first = under_way.oldest() if under_way.is_running else None
    if first is None or first.number != seen.number:
        seen = _Seen(NONE if first is None else first.number, time.monotonic())
    try:
        mesh.look()
        if first is not None:
            _refuse_late(mesh, f"{under_way.what} with {devices_of(first.others)}", seen.since)
    except RankError:
        communicators.abort()
        return None
    return seen


def _refuse_late(mesh: Mesh, what: str, since: float) -> None:
    """Fail where something takes longer than the deadline, on all ranks."""
    try:
        mesh.watch(since, f"{what} on its GPU")
    except RankError as error:
        mesh.fail(str(error))
        raise


def connected_sums(
    mesh: Mesh, device: torch.device, sets: Sequence[tuple[int, ...]]
) -> dict[tuple[int, ...], Any]:
    """A communicator for each of these sets of devices that has this rank; all ranks make theirs.

    They are made and connected in one order.
    """
    mine = [devices for devices in sets if mesh.rank in devices]
    store, begun = _store(mesh, "the start of NCCL for sums"), list[Any]()

    def make() -> dict[tuple[int, ...], Any]:
        torch.cuda.set_device(device)  # of this thread
        made = {}
        for devices in mine:
            part = PrefixStore(f"sums {devices}", store)
            made[devices] = _group(part, devices.index(mesh.rank), len(devices))
            begun.append(made[devices])
            made[devices].allreduce([torch.zeros(1, device=device)]).wait()
            _await_device(device)
        return made

    try:
        found: dict[tuple[int, ...], Any] = _watched(mesh, make)
    except BaseException:
        abort(begun)
        raise
    return found


def _store(mesh: Mesh, what: str) -> Store:
    """A part of torch's store that nobody else has used, once all ranks are there."""
    names = mesh.gather(uuid4().hex.encode(), what)
    return PrefixStore(f"weft/nccl/{names[0].decode()}", distributed_c10d._get_default_store())


def _group(store: Store, rank: int, ranks: int) -> Any:
    """A process group of NCCL, as `dist.new_group` makes it."""
    options: Any = dist.ProcessGroupNCCL.Options()
    options._timeout = LONG
    options.global_ranks_in_group = [*range(ranks)]
    with _without_watchdog():
        made = dist.ProcessGroupNCCL(store, rank, ranks, options)
    group, kind = dist.ProcessGroup(store, rank, ranks), dist.ProcessGroup.BackendType.NCCL
    group._set_default_backend(kind)
    group._register_backend(torch.device("cuda"), kind, made)
    return group


def _await_device(device: torch.device) -> None:
    """Wait for what was launched, without keeping other threads from running."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    while not event.query():  # type: ignore[no-untyped-call]
        time.sleep(GLANCE / 20)


@contextmanager
def _without_watchdog() -> Iterator[None]:
    """Torch's own would end the process when a rank dies, before it can say why."""
    environment = os.environ  # noqa: TID251 (torch reads it nowhere else)
    before = {name: environment.get(name) for name in WATCHDOG}
    environment.update(WATCHDOG)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del environment[name]
            else:
                environment[name] = value


def _end_soon() -> None:
    """Let the process end, whatever NCCL and CUDA still wait for on its way out."""
    if current_thread() is main_thread():
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(GRACE)


def abort(groups: Sequence[Any]) -> None:
    """End kernels that wait for other ranks; NCCL itself may take its time."""
    atexit.register(_end_soon)
    threads = [Thread(target=_abort, args=(one,), daemon=True) for one in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)


def close(groups: Iterable[Any]) -> None:
    """Leave none of them open."""
    for group in groups:
        with suppress(Exception):
            group.shutdown()


def _abort(group: Any) -> None:
    with suppress(Exception):
        group.abort()


def _watched(mesh: Mesh, make: Callable[[], Any]) -> Any:
    """What a thread makes; a rank that dies or stalls meanwhile is named."""
    news: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue()

    def work() -> None:
        try:
            news.put((make(), None))
        except BaseException as error:
            news.put((None, error))

    Thread(target=work, daemon=True).start()
    began, others = time.monotonic(), [one for one in range(mesh.ranks) if one != mesh.rank]
    while True:
        try:
            made, error = news.get(timeout=GLANCE)
        except queue.Empty:
            mesh.watch(began, WHAT, *others)
            continue
        if error is not None:
            raise RankError(f"NCCL could not connect the ranks: {error}") from error
        return made

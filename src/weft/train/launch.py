"""Launching: a process for each device, on this machine, gone when the run is.

    this process          waits, shows, and ends what is left
      ├── rank 0          works for device 0, reports how far it is and what it found
      ├── rank 1 ...      work for the others, and report what went wrong

Ranks that torchrun has started are taken as they are.
"""

from __future__ import annotations

import datetime
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from weft.errors import InputError, RankError, WeftError
from weft.runtime.ranks.interfaces import (
    GLOO,
    interface_of_gloo,
    interface_with,
    is_loopback,
    own_ip,
)
from weft.train.signals import EndRequest, clearing_up
from weft.train.starts import fresh

PATIENCE = datetime.timedelta(seconds=120)  # of a rank that waits for another
FAREWELL = 5.0  # seconds that a rank gets to end

Found = TypeVar("Found")
Watcher: TypeAlias = Callable[..., None]
Work: TypeAlias = Callable[[Watcher], Found]  # what a rank does; it calls `watch` as it goes on


class _News(NamedTuple):
    """What rank 0 calls its `watch` with."""

    words: tuple[Any, ...]


class _End(NamedTuple):
    """What rank 0 has found."""

    found: Any


def launched(
    work: Work[Found], watch: Watcher, *, ranks: int, request: EndRequest | None = None
) -> Found:
    """What `work` returns on rank 0, done by this many processes in one process group.

    A request to end is passed on to rank 0 once it has reported something; else, or where nobody
    takes requests, a signal ends all of them.
    """
    context = get_context("spawn")
    with clearing_up(), tempfile.TemporaryDirectory(prefix="weft-") as folder:
        processes, connections = [], []
        try:
            for rank in range(ranks):
                ours, theirs = context.Pipe(duplex=False)
                given = (work, rank, ranks, folder, theirs)
                processes.append(context.Process(target=_rank, args=given, daemon=True))
                processes[-1].start()
                theirs.close()
                connections.append(ours)
            if request is not None:
                watch = _heard(watch, request, processes[0])
            found: Found = _awaited(connections, processes, watch)
            return found
        finally:
            if request is not None:
                request.pass_on = None
            _end(processes)


@contextmanager
def given_ranks() -> Iterator[int | None]:
    """The rank that torchrun gave this process, in a process group; None where it did not."""
    if not (dist.is_available() and dist.is_torchelastic_launched()):
        yield None
        return
    store, rank, ranks = next(rendezvous("env://"))
    _talk_as_reached(store)
    store = fresh(store, rank, ranks, PATIENCE)
    try:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=PATIENCE)
    except RuntimeError as error:
        raise _unconnected(rank, error) from error
    try:
        yield rank
    finally:
        dist.destroy_process_group()


def _talk_as_reached(store: Store) -> None:
    """Let gloo talk where others reach this host; by itself it follows the host's own name."""
    ip = own_ip(store)
    interface = None if is_loopback(ip) else interface_with(ip)
    if interface is not None and not interface_of_gloo():
        os.putenv(GLOO, interface)


def _unconnected(rank: int, error: RuntimeError) -> RankError:
    """Why gloo cannot connect a rank, in its first words, and what may help."""
    reason = str(error).partition("\n")[0]
    return RankError(
        f"rank {rank} cannot be connected to the others: {reason}. Where hosts have several"
        f" networks, {GLOO} names the interface to use"
    )


# in this process


def _heard(watch: Watcher, request: EndRequest, first: BaseProcess) -> Watcher:
    """The same, which lets the first news say that rank 0 takes requests to end."""

    def watched(*words: Any) -> None:
        request.pass_on = first.terminate
        watch(*words)

    return watched


def _awaited(
    connections: Sequence[Connection], ranks: Sequence[BaseProcess], watch: Watcher
) -> Any:
    """What rank 0 sends at the end; the first error of any rank, or its end, is one here."""
    working = dict(zip(connections, ranks, strict=True))
    ended: _End | None = None
    while working:
        for connection in wait([*working]):
            assert isinstance(connection, Connection)
            try:
                received = connection.recv()
            except (EOFError, ConnectionResetError):
                _check_end(ranks.index(working[connection]), working.pop(connection))
                continue
            if isinstance(received, WeftError):
                raise received
            if isinstance(received, _News):
                watch(*received.words)
            else:
                ended = received
    if ended is None:
        raise WeftError("the run ended early: rank 0 has found nothing")
    return ended.found


def _check_end(rank: int, process: BaseProcess) -> None:
    """Refuse an end that is not one of a rank that has done its work."""
    process.join(FAREWELL)
    status = process.exitcode
    if status:
        by_signal = f"was killed by {signal.Signals(-status).name}" if status < 0 else ""
        raise WeftError(
            f"the run ended early: rank {rank} {by_signal or f'ended with status {status}'}"
        )


def _end(ranks: Sequence[BaseProcess]) -> None:
    for process in ranks:
        process.kill()  # a rank takes SIGTERM for a request, and may wait for others
        process.join()


# in a rank


def _rank(work: Work[Any], rank: int, ranks: int, folder: str, reports: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    _stay_on_this_machine()
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=ranks,
            timeout=PATIENCE,
        )
        found = work(lambda *words: reports.send(_News(words)) if rank == 0 else None)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends
        dist.barrier()
        dist.destroy_process_group()
        if rank == 0:
            reports.send(_End(found))
    except WeftError as error:
        kind = InputError if isinstance(error, InputError) else WeftError
        reports.send(kind(str(error)))
    finally:
        _clear_up(folder, seconds=0)


def _end_with_parent(folder: str) -> None:
    """However this process's parent ends, neither this process nor the folder outlives it."""
    _clear_up(folder, seconds=None)
    os._exit(1)


def _clear_up(folder: str, *, seconds: float | None) -> None:
    """Do what this process's parent can no longer do, if it ends within that time."""
    parent = parent_process()
    assert parent is not None
    parent.join(seconds)
    if not parent.is_alive():
        shutil.rmtree(folder, ignore_errors=True)


def _stay_on_this_machine() -> None:
    """Talk over the loopback interface; gloo takes its name from nowhere but the environment."""
    names = {name for _, name in socket.if_nameindex()}
    for loopback in ("lo", "lo0"):
        if loopback in names:
            os.putenv(GLOO, loopback)

"""Real processes for tests: one warmed fork server for each pytest worker, a process for each rank.

    pytest worker
      └── fork server       has torch and Weft imported, once
            ├── rank 0      joins gloo, calls a function, reports what it gave
            └── rank 1 ...

No rank outlives the call that started it, nor its own time.
"""

from __future__ import annotations

import atexit
import datetime
import faulthandler
import os
import tempfile
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist

SECONDS = 90.0  # that a rank gets
PATIENCE = datetime.timedelta(seconds=60)  # of a rank that waits for another to join
TORCHS = ["torch._dynamo", "torch.distributed.tensor.parallel", "torch.distributed.fsdp"]
WEFTS = ["weft.runtime", "weft.schedules", "weft.train"]
PRELOADED = ["__main__", *TORCHS, *WEFTS, __name__, "tests.runtime.frozen"]

TRANSPORTS = ("shared", "gloo")
CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(PRELOADED)

Enter: TypeAlias = Callable[[int], str | None]


class Place(NamedTuple):
    """Which rank of how many, and a folder that all of them see."""

    rank: int
    ranks: int
    folder: Path

    @property
    def stack(self) -> Path:
        """Where a rank that takes too long writes what it was doing."""
        return self.folder / f"stack-{self.rank}"


class Ended(NamedTuple):
    """A rank that ended without telling anything; a signal is a negative status."""

    status: int | None


class Failed(NamedTuple):
    """A rank that ended with an error that nothing caught."""

    text: str


def run(
    ranks: int, function: Callable[..., Any], *args: Any, enter: Enter | None = None
) -> list[Any]:
    """What the function gives on every rank; an error that it does not catch is one of the test.

    It should give plain values: tensors would be shared with a process that has ended. A rank that
    is killed gives `Ended`. `enter` is called first with the rank, and may name a place to meet
    other than a file.
    """
    found = outcomes(ranks, function, *args, enter=enter)
    failed = [f"rank {rank}: {one.text}" for rank, one in enumerate(found) if type(one) is Failed]
    if failed:
        raise AssertionError("\n".join(failed))
    return found


def over_transports(ranks: int, function: Callable[..., Any], *args: Any) -> list[list[Any]]:
    """The same over shared memory and over gloo, in the same processes; for each, by rank."""
    by_rank = run(ranks, _over_transports, function, args)
    return [list(found) for found in zip(*by_rank, strict=True)]


def _over_transports(function: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    return [function(*args, transport) for transport in TRANSPORTS]


def outcomes(
    ranks: int, function: Callable[..., Any], *args: Any, enter: Enter | None = None
) -> list[Any]:
    """The same, with errors among what is given."""
    with tempfile.TemporaryDirectory(prefix="weft-ranks-") as folder:
        places = [Place(rank, ranks, Path(folder)) for rank in range(ranks)]
        connections: list[Connection] = []
        processes: list[BaseProcess] = []
        try:
            for place in places:
                ours, theirs = CONTEXT.Pipe(duplex=False)
                made = CONTEXT.Process(target=_rank, args=(place, theirs, enter, function, args))
                made.start()
                theirs.close()
                connections.append(ours)
                processes.append(made)
            reported = _awaited(connections)
            for process in processes:
                process.join(SECONDS)
        finally:
            for process in processes:
                process.kill()
                process.join()
        ends = zip(places, connections, processes, strict=True)
        return [_outcome(place, reported.get(connection), one) for place, connection, one in ends]


# in the test's process


def _awaited(connections: Sequence[Connection]) -> dict[Connection, Any]:
    """What each rank reports until it ends; they end by themselves."""
    reported: dict[Connection, Any] = {}
    pending = list(connections)
    while pending:
        for connection in wait(pending):
            assert isinstance(connection, Connection)
            try:
                reported[connection] = connection.recv()
            except EOFError:
                pending.remove(connection)
    return reported


def _outcome(place: Place, reported: tuple[Any] | Failed | None, process: BaseProcess) -> Any:
    if type(reported) is Failed:
        return reported
    if reported is not None:
        return reported[0]
    stack = place.stack.read_text() if place.stack.exists() else ""
    return Failed(f"took longer than {SECONDS:g} s\n{stack}") if stack else Ended(process.exitcode)


# in a rank


def _rank(
    place: Place,
    telling: Connection,
    enter: Enter | None,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    at = enter(place.rank) if enter else None
    with place.stack.open("w") as stack:
        faulthandler.dump_traceback_later(SECONDS, exit=True, file=stack)
        try:
            _join(place, at)
            telling.send((function(*args),))
        except BaseException:
            telling.send(Failed(traceback.format_exc()))
        atexit._run_exitfuncs()  # as at the end of a script; a forked process leaves them out
        faulthandler.cancel_dump_traceback_later()


def _join(place: Place, at: str | None) -> None:
    if at is None:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        at = f"file://{place.folder}/store"
    dist.init_process_group(
        "gloo", init_method=at, rank=place.rank, world_size=place.ranks, timeout=PATIENCE
    )
    dist.barrier()  # a rank that ends at once would end the connecting of others

"""A pipeline that is closed, dropped or at its end leaves nothing open, and disturbs nobody."""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from tests.runtime.models import batches, linear, squared
from tests.runtime.ranks import SECONDS, Ended, run
from weft.errors import InputError, RankError
from weft.runtime import Pipeline
from weft.runtime.ranks.carriers import Carrier
from weft.runtime.ranks.forks import opened
from weft.runtime.transport.message import Meet, Values
from weft.schedules import chimera, one_f_one_b

PROGRAM = one_f_one_b(devices=2, microbatches=4)
DATA = batches(4, 2)

both_transports = pytest.mark.parametrize("transport", ["shared", "gloo"])


def pipeline_of(**settings: Any) -> Pipeline:
    return Pipeline(linear(2), PROGRAM, loss=squared, **settings)


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


# closing


def count_files(transport: str) -> list[int]:
    """In each rank: open files before some pipelines and after each of them."""
    counts = [files()]
    for is_closed in (True, True, True, False, False, False):
        pipeline = pipeline_of(transport=transport)
        pipeline.step(*DATA[0])
        pipeline.evaluate(*DATA[1])
        if is_closed:
            pipeline.close()
        else:
            del pipeline
            gc.collect()
        counts.append(files())
    return counts


@both_transports
def test_no_files_stay_open(transport: str) -> None:
    """Of pipelines that are closed, and of those that nothing knows any more."""
    for counts in run(2, count_files, transport):
        assert max(counts) == counts[0]


def close_twice(transport: str) -> str:
    """In each rank: what a step says after the pipeline was closed, twice."""
    with pipeline_of(transport=transport) as pipeline:
        pipeline.step(*DATA[0])
        pipeline.close()
    try:
        pipeline.step(*DATA[1])
    except InputError as error:
        return str(error)
    return "nothing"


@both_transports
def test_a_closed_pipeline_says_so(transport: str) -> None:
    assert (
        run(2, close_twice, transport) == ["this pipeline is closed: make another one to go on"] * 2
    )


def test_in_one_process_it_says_so_too() -> None:
    pipeline = pipeline_of()
    pipeline.close()
    with pytest.raises(InputError, match="this pipeline is closed"):
        pipeline.evaluate(*DATA[0])


# the last step


def end_at_once(transport: Carrier) -> str:
    """In each rank: what its last step says; a rank that is done ends, and device 1 is slow."""
    pipeline = Pipeline(
        linear(2), chimera(devices=2, microbatches=2), loss=squared, transport=transport
    )
    pipeline.step(*DATA[0])
    if dist.get_rank() == 1:
        for (exchange,) in pipeline._parts.weights._exchanges.values():
            lines = exchange._lines
            lines._meets = [partial(slowly, meet) for meet in lines._meets]
    try:
        pipeline.step(*DATA[1])
    except RankError as error:
        return str(error)
    return "done"


def slowly(meet: Meet) -> list[Values]:
    """Receive once the sender had time to end."""
    time.sleep(1)
    return meet()


@both_transports
def test_a_rank_may_end_as_soon_as_its_last_step_is_over(transport: str) -> None:
    assert run(2, end_at_once, transport) == ["done"] * 2


# children


def die_with_a_child(transport: str) -> str:
    """In each rank: what it says when the other one dies, whose child lives on."""
    store, rank = _get_default_store(), dist.get_rank()
    pipeline = pipeline_of(transport=transport)
    pipeline.step(*DATA[0])
    if rank == 1:
        child = os.fork()
        if child == 0:
            signal.alarm(int(SECONDS))  # at the latest
            signal.pause()
        store.set("child", str(child))
        os.kill(os.getpid(), signal.SIGKILL)
    child = int(store.get("child"))
    try:
        pipeline.step(*DATA[1])
    except RankError as error:
        return str(error)
    finally:
        os.kill(child, signal.SIGKILL)
    return "nothing"


@both_transports
def test_a_child_does_not_hide_that_a_rank_has_died(transport: str) -> None:
    first, second = run(2, die_with_a_child, transport)
    assert second == Ended(-signal.SIGKILL)
    assert first.startswith("device 1 died; device 0 was waiting for ")


def end_a_child(transport: str) -> tuple[str, str]:
    """In each rank: what a child says of the pipeline, and the step after the child has ended."""
    pipeline = pipeline_of(transport=transport)
    pipeline.step(*DATA[0])
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            try:
                pipeline.gathered(pipeline.step(*DATA[1]))
            except RankError as error:
                os.write(theirs, str(error).encode())
            del pipeline
            gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    text = os.read(ours, 1000).decode()
    return text, str(pipeline.step(*DATA[1]).loss.isfinite().item())


@both_transports
def test_a_child_that_ends_is_not_the_end_of_its_rank(transport: str) -> None:
    text = "this process was forked from device {}, which alone can go on"
    assert run(2, end_a_child, transport) == [(text.format(rank), "True") for rank in range(2)]


def test_a_connection_is_known_that_has_the_number_of_a_closed_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        earlier = socket.socket()
        with opened() as found, socket.create_connection(server.getsockname()) as own:
            os.dup2(own.fileno(), earlier.fileno())
        other, _ = server.accept()
        other.settimeout(SECONDS)
        with earlier, other:
            found.shut()
            assert other.recv(1) == b""

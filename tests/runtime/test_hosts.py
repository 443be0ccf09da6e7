"""Ranks of two hosts: network namespaces joined by a wire, with nothing else in reach."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from functools import partial

import pytest

from tests.runtime.exactness import differences_of
from tests.runtime.models import batches, linear, squared
from tests.runtime.namespaces import enter_host, two_hosts
from tests.runtime.ranks import Ended, run
from weft.errors import InputError, WeftError
from weft.runtime import Pipeline
from weft.runtime.transport.grouped import Grouped
from weft.schedules import chimera, one_f_one_b, zbv

SHAPE = {"devices": 2, "microbatches": 4}


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[str]]:
    with two_hosts() as names:
        yield names


def enter(names: list[str], port: int, rank: int) -> str:
    """Rank 0 on the first host and rank 1 on the second; they meet by TCP, as torchrun's do."""
    enter_host(names[rank])
    os.environ["GLOO_SOCKET_IFNAME"] = "wire"
    return f"tcp://10.0.0.1:{port}"


def train_apart() -> tuple[bool, str, list[list[str]]]:
    """In each rank: whether gloo was chosen, what shared memory says, and what differs."""
    pipeline = Pipeline(linear(2), one_f_one_b(**SHAPE), loss=squared)
    is_gloo = isinstance(pipeline._world.transport, Grouped)
    try:
        Pipeline(linear(2), one_f_one_b(**SHAPE), loss=squared, transport="shared")
        said = "nothing"
    except InputError as error:
        said = str(error)
    programs = (one_f_one_b(**SHAPE), chimera(**SHAPE), zbv(**SHAPE))
    return is_gloo, said, [differences_of("layers", program) for program in programs]


def test_two_hosts_find_each_other_and_train_exactly(hosts: list[str]) -> None:
    found = run(2, train_apart, enter=partial(enter, hosts, 29501))
    refused = "transport='shared' needs all ranks on one Linux host; use 'gloo' between hosts"
    assert found == [(True, refused, [[], [], []])] * 2


def kill_one() -> str:
    """In each rank: what it says when the other host's is killed after a step."""
    pipeline = Pipeline(linear(2), one_f_one_b(**SHAPE), loss=squared)
    first, second = batches(8, 2)
    pipeline.step(*first)
    if pipeline._world.devices.start == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        pipeline.step(*second)
    except WeftError as error:
        return str(error)
    return "nothing"


def test_a_rank_killed_on_one_host_ends_that_of_the_other(hosts: list[str]) -> None:
    first, second = run(2, kill_one, enter=partial(enter, hosts, 29502))
    assert second == Ended(-signal.SIGKILL)
    assert re.fullmatch("device 1 died; device 0 was waiting for .*", first)

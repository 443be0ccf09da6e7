"""Ranks of two hosts: network namespaces joined by a wire, with nothing else in reach."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from tests.runtime.exactness import differences_of
from tests.runtime.models import batches, linear, squared
from tests.runtime.namespaces import enter_host, two_hosts
from tests.runtime.ranks import Ended, run
from weft.errors import InputError, WeftError
from weft.runtime import Pipeline
from weft.runtime.profile import BRIEF, Sample, profiled
from weft.runtime.ranks.interfaces import own_ip
from weft.runtime.ranks.members import members_of
from weft.runtime.ranks.rendezvous import meet
from weft.runtime.transport.grouped import Grouped
from weft.schedules import chimera, one_f_one_b, zbv
from weft.train.launch import given_ranks

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


def enter_two_each(names: list[str], port: int, rank: int) -> str:
    """Ranks 0 and 1 on the first host, 2 and 3 on the second."""
    enter_host(names[rank // 2])
    os.environ["GLOO_SOCKET_IFNAME"] = "wire"
    return f"tcp://10.0.0.1:{port}"


def measured_apart() -> list[tuple[int, int]]:
    """In each rank: the pairs of ranks that have a link of their own, by a profile."""
    program = one_f_one_b(devices=4, microbatches=4)
    batch, target = batches(4, 1)[0]
    brief = replace(BRIEF, sizes=(1024, 65536), pings=2, steps=1, rounds=1)
    cost = profiled(linear(4), program, Sample(batch, target, squared), brief)
    assert cost.network.default.latency > 0
    return sorted(cost.network.between)


def test_a_profile_knows_which_ranks_share_a_host(hosts: list[str]) -> None:
    near = [(0, 1), (1, 0), (2, 3), (3, 2)]
    assert run(4, measured_apart, enter=partial(enter_two_each, hosts, 29503)) == [near] * 4


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


def enter_by_name(names: list[str], port: int, rank: int) -> str:
    """The name of the first host leads to a loopback there, as Debian has it in /etc/hosts."""
    enter_host(names[rank // 2])
    os.environ["GLOO_SOCKET_IFNAME"] = "wire"
    return f"tcp://{'10.0.0.1' if rank // 2 else '127.1'}:{port}"


def addresses_apart() -> str:
    return own_ip(_get_default_store())


def test_a_host_whose_name_is_a_loopback_is_reached_as_gloo_is(hosts: list[str]) -> None:
    found = run(4, addresses_apart, enter=partial(enter_by_name, hosts, 29504))
    assert found == ["10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2"]


def meet_a_late_rank() -> bool:
    """In each rank: whether all meet, though the first host knows only a loopback of its own."""
    del os.environ["GLOO_SOCKET_IFNAME"]
    if dist.get_rank() == 2:
        time.sleep(1.5)  # in which the other ranks look after each other
    members = members_of(None, "gloo")
    assert members is not None
    met = meet(members, 60.0)
    met.mesh.close()
    return len({*met.hosts}) == 2


def enter_first_alone(names: list[str], port: int, rank: int) -> str:
    """Rank 0 on the first host, which it knows by a loopback; the others on the second."""
    enter_host(names[min(rank, 1)])
    os.environ["GLOO_SOCKET_IFNAME"] = "wire"
    return f"tcp://{'10.0.0.1' if rank else '127.1'}:{port}"


def test_a_loopback_of_another_host_is_no_sign_of_its_death(hosts: list[str]) -> None:
    enter = partial(enter_first_alone, hosts, 29505)
    assert run(3, meet_a_late_rank, enter=enter) == [True] * 3


def joined_as_torchrun_says() -> float:
    """In each rank: a sum over gloo, which was given no interface."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    del os.environ["GLOO_SOCKET_IFNAME"]
    os.environ.update(TORCHELASTIC_RUN_ID="apart", RANK=str(rank), WORLD_SIZE=str(ranks))
    os.environ.update(MASTER_ADDR="10.0.0.1", MASTER_PORT="29507")
    with given_ranks() as given:
        assert given == rank
        total = torch.tensor([rank + 1.0])
        dist.all_reduce(total)
        return total.item()


def test_weft_train_finds_the_interface_between_hosts(hosts: list[str]) -> None:
    assert run(2, joined_as_torchrun_says, enter=partial(enter, hosts, 29506)) == [3.0, 3.0]

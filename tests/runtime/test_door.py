"""The door lets in who has proved to be a rank; strangers are turned away and delay nobody."""

from __future__ import annotations

import os
import pwd
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from tests.runtime.models import batches, linear, squared
from tests.runtime.ranks import Ended, run
from weft.errors import InputError, RankError
from weft.runtime import Pipeline
from weft.runtime.ranks.addresses import Address, Addresses
from weft.runtime.ranks.door import (
    HELLO,
    MOST_GUESTS,
    PAUSE,
    Connection,
    Door,
    connected,
    is_closed,
    listening_far,
    listening_near,
)
from weft.runtime.ranks.keys import PRIME, Key
from weft.schedules import one_f_one_b

PROGRAM = one_f_one_b(devices=2, microbatches=4)
CONNECTION = Connection(0, 0)
PROOF = bytes(range(32))

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
both_kinds = pytest.mark.parametrize("is_near", [True, False], ids=["unix", "tcp"])


@contextmanager
def door(is_near: bool = True) -> Iterator[tuple[Door, Any]]:
    """A door for one connection, and where it is."""
    listener = listening_near() if is_near else listening_far("127.0.0.1")
    with listener, closing(Door(listener, {CONNECTION: PROOF})) as made:
        yield made, listener.getsockname()


def admitted(made: Door) -> list[Connection]:
    """Those who have come by now."""
    found = []
    for connection, peer in made.admitted(PAUSE):
        found.append(connection)
        peer.close()
    return found


# proofs


def test_two_keys_agree_and_a_third_does_not() -> None:
    one, other, third = Key(), Key(), Key()
    proof = one.proof(other.public, b"words")
    assert proof == other.proof(one.public, b"words")
    assert proof != other.proof(one.public, b"other words")
    assert proof != third.proof(other.public, b"words")
    assert proof != third.proof(one.public, b"words")


@pytest.mark.parametrize("number", [0, 1, PRIME - 1, PRIME])
def test_a_number_that_betrays_the_secret_is_no_key(number: int) -> None:
    with pytest.raises(InputError, match="not a key"):
        Key().proof(number, b"words")


def test_the_group_is_one_of_safe_primes() -> None:
    """By Fermat's test to several bases, for the number and its half."""
    for number in (PRIME, PRIME // 2):
        assert all(pow(base, number - 1, number) == 1 for base in (2, 3, 5, 7, 11))


# strangers


@both_kinds
def test_who_proves_to_be_a_rank_is_let_in_though_it_stutters(is_near: bool) -> None:
    with door(is_near) as (made, place), connected(place, None) as peer:
        for byte in HELLO.pack(*CONNECTION, PROOF):
            assert admitted(made) == []
            peer.sendall(bytes([byte]))
        assert admitted(made) == [CONNECTION]


@both_kinds
def test_a_stranger_is_turned_away_and_the_rank_still_let_in(is_near: bool) -> None:
    with door(is_near) as (made, place), connected(place, None) as stranger:
        stranger.sendall(HELLO.pack(*CONNECTION, bytes(32)))
        assert admitted(made) == []
        assert stranger.recv(1) == b""
        with connected(place, None) as peer:
            peer.sendall(HELLO.pack(*CONNECTION, PROOF))
            assert admitted(made) == [CONNECTION]


def test_nobody_is_let_in_twice() -> None:
    with door() as (made, place):
        for expected in ([CONNECTION], []):
            with connected(place, None) as peer:
                peer.sendall(HELLO.pack(*CONNECTION, PROOF))
                assert admitted(made) == expected


@both_kinds
def test_strangers_who_say_nothing_delay_nobody(is_near: bool) -> None:
    """More of them than a rank keeps waiting at its door."""
    with door(is_near) as (made, place):
        strangers = []
        for _ in range(2 * MOST_GUESTS):
            strangers.append(connected(place, None))
            assert admitted(made) == []
        with connected(place, None) as peer:
            peer.sendall(HELLO.pack(*CONNECTION, PROOF))
            assert admitted(made) == [CONNECTION]
        assert len(made._guests) <= MOST_GUESTS
        for stranger in strangers:
            stranger.close()


def test_a_door_that_nobody_keeps_is_closed() -> None:
    with door() as (_, place):
        assert not is_closed(place)
    assert is_closed(place)


# other users


@contextmanager
def another_user() -> Iterator[None]:
    """Act as one without rights."""
    os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)


@needs_root
def test_another_user_is_turned_away_whatever_it_knows() -> None:
    with door() as (made, place):
        with another_user():
            stranger = socket.socket(socket.AF_UNIX)
            stranger.connect(place)
        with stranger:
            stranger.sendall(HELLO.pack(*CONNECTION, PROOF))
            assert admitted(made) == []


@needs_root
def test_a_rank_does_not_speak_to_the_door_of_another_user() -> None:
    with another_user():
        listener = listening_near()
    with listener, pytest.raises(RankError, match="another user's process listens"):
        connected(listener.getsockname(), None)


# a meeting


def meet_among_strangers() -> bool:
    """In each rank: whether a step is finite though strangers knock who know all of the store."""
    put, strangers = Addresses.put, []

    def and_knock(addresses: Addresses, mine: Address) -> None:
        proof = Key().proof(mine.key, CONNECTION.words(addresses.rank))
        for hello in [b"", HELLO.pack(*CONNECTION, proof)] * 20:
            for is_near in (True, False):
                strangers.append(connected(mine.place(is_near=is_near), None))
                strangers[-1].sendall(hello)
        put(addresses, mine)

    setattr(Addresses, "put", and_knock)  # noqa: B010
    with Pipeline(linear(2), PROGRAM, loss=squared) as pipeline:
        return bool(pipeline.step(*batches(4, 1)[0]).loss.isfinite())


def test_strangers_who_are_first_do_not_keep_ranks_from_meeting() -> None:
    assert run(2, meet_among_strangers) == [True] * 2


def by_tcp(port: int, _: int) -> str:
    """Ranks meet through a store that rank 0 holds."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    return f"tcp://127.0.0.1:{port}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stop_the_holder() -> str:
    """In each rank: what rank 1 says when the process that holds the store is stopped."""
    store = _get_default_store()
    if dist.get_rank() == 0:
        store.set("holder", str(os.getpid()))
        signal.pause()
    holder = int(store.get("holder"))
    os.kill(holder, signal.SIGSTOP)
    try:
        Pipeline(linear(2), PROGRAM, loss=squared, deadline=3.0)
    except RankError as error:
        return str(error)
    finally:
        os.kill(holder, signal.SIGKILL)
    return "nothing"


def test_a_store_that_falls_silent_is_an_error_after_the_deadline() -> None:
    first, second = run(2, stop_the_holder, enter=partial(by_tcp, free_port()))
    assert first == Ended(-signal.SIGKILL)
    assert second.startswith("the store of the process group does not answer: device 0 or torchrun")


def kill_the_holder() -> str:
    """The same when it is killed, once both have joined."""
    store = _get_default_store()
    with suppress(RuntimeError):  # the other end may be gone as soon as it has passed
        dist.barrier()
    if dist.get_rank() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    with suppress(RuntimeError):  # it has ended
        store.wait(["never"])
    try:
        Pipeline(linear(2), PROGRAM, loss=squared)
    except RankError as error:
        return str(error)
    return "nothing"


def test_a_store_that_ends_is_an_error_at_once() -> None:
    first, second = run(2, kill_the_holder, enter=partial(by_tcp, free_port()))
    assert first == Ended(-signal.SIGKILL)
    assert re.match(r"the store of the process group does not answer \(.*\): device 0", second)

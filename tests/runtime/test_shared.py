"""Shared memory: values arrive as they were sent, a window ahead at most, and nothing locks up."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from tests.runtime.meshes import meshes
from weft.errors import RankError
from weft.ir.kinds import Direction
from weft.runtime.ranks.window import Windows
from weft.runtime.transport.blocks import KEPT, PAGE
from weft.runtime.transport.host import HostMemory
from weft.runtime.transport.message import Message, Receive, Route, Send, Unknown
from weft.runtime.transport.shared import KNOWN, Shared

WINDOW = 4


@contextmanager
def two() -> Iterator[tuple[Shared, Shared]]:
    with meshes(2) as (one, other):
        windows: Windows = defaultdict(lambda: WINDOW)
        yield Shared(one, windows), Shared(other, windows)


def route(microbatch: int, source: int = 0) -> Route:
    message = Message(0, Direction.ACTIVATION, microbatch)
    return Route(message, source, 1 - source, f"{source}F{microbatch}", microbatch)


def send(shared: Shared, microbatch: int = 0, source: int = 0) -> Send:
    return shared.sender(route(microbatch, source), Unknown())


def receive(shared: Shared, microbatch: int = 0, source: int = 0) -> Receive:
    return shared.receiver(route(microbatch, source), Unknown())


class LateMemory(HostMemory):
    """As memory of a GPU is read: when somebody asks for a value."""

    is_read_late = True


# values


def test_values_arrive_as_they_are() -> None:
    """Of any type and shape, empty ones, single numbers, and what is not there."""
    values = [
        torch.randn(3, 5),
        None,
        torch.arange(7),
        torch.zeros(0, 4),
        torch.tensor(2.5, dtype=torch.float64),
        torch.randn(4, 6).to(torch.bfloat16).t(),
        torch.tensor([True, False]),
    ]
    with two() as (one, other):
        send(one)(values)
        for sent, found in zip(values, receive(other)(), strict=True):
            assert (sent is None) == (found is None)
            if sent is not None and found is not None:
                assert found.dtype == sent.dtype
                assert torch.equal(found, sent)


def test_what_is_sent_may_be_changed_afterwards() -> None:
    value = torch.zeros(3)
    with two() as (one, other):
        send(one)([value])
        value.fill_(1)
        (found,) = receive(other)()
        assert found is not None
        assert not found.any()


def test_what_has_arrived_is_the_receivers_own() -> None:
    """The memory it came through is used again."""
    with two() as (one, other):
        sender, receiver = send(one), receive(other)
        arrived = []
        for number in range(3 * WINDOW):
            sender([torch.full((3,), number)])
            arrived.append(receiver()[0])
        assert [int(value[0]) for value in arrived if value is not None] == [*range(3 * WINDOW)]


def test_messages_are_read_by_name_in_any_order() -> None:
    with two() as (one, other):
        for microbatch in range(WINDOW):
            send(one, microbatch)([torch.tensor(microbatch)])
        found = {m: receive(other, m)()[0] for m in reversed(range(WINDOW))}
        assert {m: int(value) for m, value in found.items() if value is not None} == {
            m: m for m in range(WINDOW)
        }


# the window


def test_values_that_are_read_late_and_in_another_order_are_not_written_over() -> None:
    """A gradient is read before the activations that were sent before it."""
    with meshes(2) as (one, other):
        windows: Windows = defaultdict(lambda: 8)
        sender, reader = Shared(one, windows, LateMemory()), Shared(other, windows, LateMemory())
        for first in range(0, 40, 8):
            order = [*range(first, first + 8)]
            for number in order:
                send(sender, number)([torch.full((3,), float(number))])
            for number in order[::-1][:4]:  # credit for these
                assert arrived(reader, number) == number
            for number in order:
                send(sender, number + 100)([torch.full((3,), number + 100.0)])
                if number in order[:4]:
                    assert arrived(reader, number) == number
                assert arrived(reader, number + 100) == number + 100


def arrived(shared: Shared, number: int) -> float:
    (found,) = receive(shared, number)()
    assert found is not None
    return float(found[0])


def test_a_sender_is_a_window_ahead_at_most() -> None:
    with two() as (one, _):
        one._mesh.deadline = 0.01
        sender = send(one)
        for _ in range(WINDOW):
            sender([torch.zeros(3)])
        with pytest.raises(RankError, match="device 1 to read what was sent before 0F0"):
            sender([torch.zeros(3)])


def send_all_then_receive_all(shared: Shared, rank: int, count: int) -> list[int]:
    sender, receiver = send(shared, source=rank), receive(shared, source=1 - rank)
    for number in range(count):
        sender([torch.tensor(number)])
    shared.end()
    return [int(value) for _ in range(count) for value in receiver() if value is not None]


def test_two_that_both_send_far_ahead_do_not_lock_up() -> None:
    """While it waits for room, each takes what the other has sent."""
    count = 25 * WINDOW
    with two() as both, ThreadPoolExecutor() as threads:
        work = [threads.submit(send_all_then_receive_all, both[r], r, count) for r in range(2)]
        assert [one.result() for one in work] == [[*range(count)]] * 2


# memory


def rounds(count: int, shapes: int, pair: tuple[Shared, Shared]) -> None:
    one, other = pair
    sender, receiver = send(one), receive(other)
    for number in range(count):
        sender([torch.zeros(1 + number % shapes)])
        receiver()


def test_blocks_are_used_again() -> None:
    with two() as pair:
        rounds(10 * WINDOW, 1, pair)
        assert pair[0]._blocks <= WINDOW


def test_no_files_are_opened_but_those_of_the_blocks() -> None:
    with two() as pair:
        rounds(WINDOW, 1, pair)
        before = len(os.listdir("/proc/self/fd"))
        rounds(10 * WINDOW, 1, pair)
        assert len(os.listdir("/proc/self/fd")) == before


def test_shapes_that_always_change_fill_no_memory() -> None:
    """What is kept to save work has a limit."""
    with two() as (one, other):
        rounds(3 * KEPT, KEPT - 1, (one, other))
        blocks = [*one._free[1][PAGE], *one._used[1, False].values(), *other._seen.values()]
        assert max(len(block.views) for block in blocks) <= KEPT
        assert max(len(block.packed) for block in blocks) <= KEPT
        assert len(other._known) <= KNOWN


def test_what_comes_after_the_end_is_ignored() -> None:
    """Other ranks may be in the middle of a step when this one has failed."""
    with two() as (one, other):
        for microbatch in range(2):
            send(one, microbatch)([torch.zeros(3)])
        receive(other)()
        other.close()
        send(one, 2)([torch.zeros(3)])
        other._mesh.look()
        one.close()
        other.end()
        one._mesh.look()

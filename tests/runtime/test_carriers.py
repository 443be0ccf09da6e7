"""Which transport ranks use, and which of two a message takes where there are several hosts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weft.errors import InputError
from weft.ir.kinds import Direction
from weft.runtime.ranks.carriers import Carrier, chosen
from weft.runtime.transport.message import (
    Fixed,
    Message,
    Post,
    Receive,
    Route,
    Send,
    Shapes,
    Values,
)
from weft.runtime.transport.mixed import Mixed

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
ONE, TWO, EACH = ["a", "a"], ["a", "a", "b", "b"], ["a", "b"]


@pytest.mark.parametrize(
    ("hosts", "device", "wanted"),
    [
        (ONE, CPU, "shared"),
        (TWO, CPU, "gloo"),
        (ONE, GPU, "peer"),
        (EACH, GPU, "nccl"),
        (TWO, GPU, "mixed"),
    ],
)
def test_where_nothing_is_asked_for_hosts_and_devices_decide(
    hosts: list[str], device: torch.device, wanted: str
) -> None:
    assert chosen("auto", hosts, device) == wanted


@pytest.mark.parametrize(
    ("asked", "hosts", "device", "why"),
    [
        ("peer", TWO, GPU, "needs all ranks on one Linux host; use 'nccl' between hosts"),
        ("shared", TWO, CPU, "needs all ranks on one Linux host; use 'gloo' between hosts"),
        ("peer", ONE, CPU, "needs stages on GPUs"),
        ("nccl", ONE, CPU, "needs stages on GPUs"),
        ("mixed", TWO, CPU, "needs stages on GPUs"),
    ],
)
def test_what_cannot_be_is_refused(
    asked: Carrier, hosts: list[str], device: torch.device, why: str
) -> None:
    with pytest.raises(InputError, match=why):
        chosen(asked, hosts, device)


class Noting:
    """A transport that notes what is asked of it."""

    is_ordered = False

    def __init__(self) -> None:
        self.asked: list[str] = []

    def sender(self, route: Route, shapes: Shapes) -> Send:
        return lambda values: self.asked.append(f"send {route.source} {route.destination}")

    def receiver(self, route: Route, shapes: Shapes) -> Receive:
        def receive() -> Values:
            self.asked.append(f"receive {route.source} {route.destination}")
            return ()

        return receive

    def poster(self, route: Route, shapes: Shapes) -> Post:
        return lambda: self.asked.append("poster")

    def post(self, is_last: bool) -> None:
        self.asked.append("post")

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.asked.append(name)


def test_messages_within_a_host_are_copied_and_others_keep_the_order() -> None:
    near, far = Noting(), Noting()
    mixed = Mixed(near, far, lambda source, destination: source // 2 != destination // 2)
    for source, destination in ((0, 1), (1, 2), (3, 2)):
        message = Message(0, Direction.ACTIVATION, source)
        route = Route(message, source, destination, "0F0", 0)
        mixed.sender(route, Fixed(()))([])
        mixed.receiver(route, Fixed(()))()
    assert near.asked == ["send 0 1", "receive 0 1", "send 3 2", "receive 3 2"]
    assert far.asked == ["send 1 2", "receive 1 2"]


def test_both_begin_end_and_close() -> None:
    near, far = Noting(), Noting()
    mixed = Mixed(near, far, lambda *_: True)
    mixed.begin([], [])
    mixed.go_on([], [])
    mixed.post(True)
    mixed.end()
    mixed.abandon()
    mixed.close()
    common = ["begin", "go_on", "end", "abandon", "close"]
    assert near.asked == common
    assert [one for one in far.asked if one != "post"] == common

"""Hops: a message passes to and fro over every transport, also where all keep one order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.runtime.meshes import meshes
from tests.runtime.test_nccl import nccl
from weft.cost import Fit, Link
from weft.runtime.profile import hops

LONG = 30.0


@pytest.fixture(autouse=True)
def no_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimpleNamespace(begin=lambda: None, now=lambda: 0.0, seconds=lambda one, other: 1.0)
    monkeypatch.setattr(hops, "accelerator_of", lambda _: device)
    monkeypatch.setattr(Tensor, "record_stream", lambda self, stream: None)


@pytest.mark.parametrize(("make", "messages"), [(hops._Player, 1), (hops._Burst, hops.BURST)])
def test_transfers_that_keep_an_order_are_posted_and_launched(make: Any, messages: int) -> None:
    def play(mesh: Any) -> list[list[tuple[str, int]]]:
        transport, both = nccl(mesh)
        transport.is_first = False
        here = range(mesh.rank, mesh.rank + 1)
        world: Any = SimpleNamespace(
            transport=transport, devices=here, keeps_order=lambda source, destination: True
        )
        make(world, (0, 1), 0, torch.zeros(4)).play(0.0)
        transport.close()
        return both.wires.launched

    with meshes(2) as made, ThreadPoolExecutor(2) as threads:
        first, second = threads.map(play, made, timeout=LONG)
    assert first == [[("send", 1)]] * messages + [[("receive", 1)]] * messages
    assert second == [[("receive", 0)]] * messages + [[("send", 0)]] * messages


def of(latency: float) -> hops.Hops:
    return hops.Hops(((1.0, latency),), Fit(Link(latency, 1e9), 1.0))


def test_links_within_a_host_and_between_hosts_differ() -> None:
    found = hops.HopTimes(of(2.0), of(1.0), ("a", "a", "b", "b"))
    network = found.network((8.0,))
    assert network.default.latency == found.slowest.fit.link.latency == 2.0
    assert sorted(network.between) == [(0, 1), (1, 0), (2, 3), (3, 2)]
    assert {link.latency for link in network.between.values()} == {1.0}
    alone = hops.HopTimes(None, of(1.0), ("a", "a")).network((8.0,))
    assert (alone.default.latency, alone.between) == (1.0, {})


def test_pairs_that_play_at_once_have_no_rank_in_common() -> None:
    assert hops._disjoint([(1, 2), (0, 1), (2, 3), (0, 3)]) == [(0, 1), (2, 3)]

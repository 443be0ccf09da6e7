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
        make(world, 0, torch.zeros(4)).play(0.0)
        transport.close()
        return both.wires.launched

    with meshes(2) as made, ThreadPoolExecutor(2) as threads:
        first, second = threads.map(play, made, timeout=LONG)
    assert first == [[("send", 1)]] * messages + [[("receive", 1)]] * messages
    assert second == [[("receive", 0)]] * messages + [[("send", 0)]] * messages

"""Memory of GPUs between processes: who opens it waits for nothing that it does not read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.runtime.fake_device import FakeDevice, FakeEvent
from weft.runtime.transport.blocks import Block
from weft.runtime.transport.peer import Events, PeerMemory

CPU = torch.device("cpu")
NO_MESH: Any = SimpleNamespace(handle=lambda *_: None)


class SharedEvent(FakeEvent):
    def ipc_handle(self) -> bytes:
        return b"event"


class Torch:
    """What torch does to share memory: it notes an event, for which whoever opens it waits."""

    def __init__(self, device: FakeDevice) -> None:
        self._device, self.noted = device, FakeEvent()

    def share(self, storage: torch.UntypedStorage) -> tuple[object, ...]:
        self.noted.record(self._device.entered)
        return 0, b"memory", len(storage), 0, b"counter", 0, b"noted", True

    def open(self, *shared: object) -> torch.UntypedStorage:
        *_, size, _, _, _, noted, is_awaited = shared
        assert noted == b"noted"
        if is_awaited:
            self._device.entered.wait_event(self.noted)
        assert isinstance(size, int)
        return torch.UntypedStorage(size)  # type: ignore[no-untyped-call]


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def shared(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> Torch:
    found = Torch(device)
    monkeypatch.setattr(torch.UntypedStorage, "_share_cuda_", lambda self: found.share(self))
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared_cuda", found.open)
    monkeypatch.setattr(PeerMemory, "_opened_event", lambda *_: FakeEvent())
    return found


def test_a_message_that_came_early_holds_nothing_up(device: FakeDevice, shared: Torch) -> None:
    """Its sender may be far ahead, and what it sends come of what its receiver has yet to do."""
    memory = PeerMemory(NO_MESH, CPU, device)
    wire = device.stream("wire")
    device.enter(wire)
    wire.launches.append("a copy that takes its time")
    block = Block(3, torch.zeros(64, dtype=torch.uint8), Events(SharedEvent(), SharedEvent()))  # type: ignore[arg-type]
    announced: Any = SimpleNamespace(number=3, where=memory.give(NO_MESH, 1, block))
    assert device.entered is wire
    assert shared.noted.query(), "torch may wait for it itself"

    device.enter(device.chosen)
    opened = memory.open(NO_MESH, 0, announced)
    assert (opened.number, opened.size) == (3, 64)
    assert device.chosen.launches == []

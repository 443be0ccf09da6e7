"""Ranks on watched devices, over stand-ins for NCCL: what it sends and receives is seen as well.

wire       ... group ·····          launches it, and goes on
nccl             └ reads, writes    once the wire was there
compute                       wait  whoever reads what has come
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from typing import Any
from unittest.mock import patch

from torch import Tensor

from tests.runtime.like_gpus import launch, like_gpus
from tests.runtime.watched_device import WatchedDevice, WatchedEvent, watched
from weft.runtime.ranks.mesh import Mesh
from weft.runtime.transport.nccl import Nccl, TransferGroup
from weft.runtime.transport.under_way import UnderWay


@contextmanager
def watched_over_nccl(hosts: int = 1, *, is_waiting: bool = True) -> Iterator[WatchedDevice]:
    """In a rank; readers that are not waiting are a fault."""
    device = WatchedDevice()
    ends: dict[int, WatchedEvent] = {}  # of groups, all of which live until all is over
    wait, finish = Nccl._wait, UnderWay.finish

    def launched(
        self: Nccl, device: WatchedDevice, group: TransferGroup, communicator: Any
    ) -> None:
        is_wire = communicator is self._communicators.wires
        ends[id(group)] = _exchanged(device, group, "nccl wires" if is_wire else "nccl sums")
        launch(self, device, group, communicator)

    def waited(self: Nccl, group: TransferGroup) -> None:
        wait(self, group)
        if is_waiting:
            device.entered.wait_event(ends[id(group)])

    def kept(tensor: Tensor, stream: Any) -> None:
        device.keep_for(tensor, stream.name)

    def held(self: UnderWay, group: Any) -> None:
        """Until the pipeline is closed, a host may not know that it is over."""
        self._launched.append((self._count, group))
        self._count += 1

    def finished(self: UnderWay, mesh: Mesh) -> None:
        device.catch_up()
        finish(self, mesh)

    with (
        like_gpus(hosts, device),
        patch.object(Nccl, "_launch", partialmethod(launched, device)),
        patch.object(Nccl, "_wait", waited),
        patch.object(UnderWay, "add", held),
        patch.object(UnderWay, "finish", finished),
        patch.object(Tensor, "record_stream", kept),
        watched(device),
    ):
        yield device


def _exchanged(device: WatchedDevice, group: TransferGroup, name: str) -> WatchedEvent:
    """A group that begins once the stream that launches it is there; when it is over."""
    back, begun, over = device.entered, device.event(), device.event()
    begun.record(back)
    device.enter(device.stream(name))
    device.entered.wait_event(begun)
    sent, received = (
        [tensor for is_send, tensor, _ in group._ops if is_send is wanted]
        for wanted in (True, False)
    )
    device.access(sent, received)
    over.record(device.entered)
    device.enter(back)
    return over

"""NCCL: transfers between GPUs, all of a rank in one order that all ranks share.

    a step    puts its transfers into the group at hand; the last of a group launches it
    a reader  makes its stream wait for the group; the host waits for nobody

There is one communicator for messages and one for sums of gradients, each with all ranks, and both
are connected before the first step. What is launched before a transfer never needs what comes after
it, on any rank (`lower.one_wire`), so that nothing can be waited for in a circle: not even where
CUDA itself drains a device before it goes on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from weft.ir.kinds import Direction
from weft.runtime.device.accelerator import Accelerator
from weft.runtime.ranks.mesh import Mesh
from weft.runtime.stage.values import Structure
from weft.runtime.transport.communicators import GLANCE, PATIENCE, Communicators, Guard
from weft.runtime.transport.descriptions import Descriptions
from weft.runtime.transport.message import (
    Layout,
    Meet,
    Message,
    Post,
    Receive,
    Route,
    Send,
    Shapes,
    TensorShape,
    Values,
)
from weft.runtime.transport.under_way import UnderWay

UNKNOWN = (torch.int16, torch.uint16, torch.uint32, torch.uint64)  # to NCCL

Op: TypeAlias = tuple[bool, Tensor, int]  # whether it sends, what, and to or from whom


class Expected(NamedTuple):
    """What a receive will have filled, the group that it is in, and whether its header was read."""

    values: list[Tensor | Structure | None]
    group: TransferGroup
    is_heard: bool


class TransferGroup:
    """Transfers that are launched together, on the stream that is entered then."""

    __slots__ = ("_ops", "work")

    def __init__(self) -> None:
        self._ops: list[Op] = []
        self.work: dist.Work | None = None

    def add(self, tensor: Tensor, peer: int, *, is_send: bool) -> None:
        self._ops.append((is_send, _carried(tensor), peer))

    def join(self, other: TransferGroup) -> None:
        """Launch what another has as well."""
        self._ops += other._ops

    def launch(self, communicator: Any, device: torch.device) -> None:
        if not self._ops:
            return
        communicator._start_coalescing(device)
        for is_send, tensor, peer in self._ops:
            call = communicator.send if is_send else communicator.recv
            call([tensor], peer, 0)
        self.work = communicator._end_coalescing(device)

    @property
    def peers(self) -> set[int]:
        """The devices at the other ends."""
        return {peer for *_, peer in self._ops}

    @property
    def is_over(self) -> bool:
        """Whether its memory may be given to others."""
        return self.work is None or self.work.is_completed()

    def wait(self) -> None:
        """Let the entered stream wait; the host goes on."""
        if self.work is not None:
            self.work.wait()


class Nccl:
    """Messages in groups; whoever receives one has posted it before."""

    def __init__(
        self,
        mesh: Mesh,
        communicators: Communicators,
        device: torch.device,
        accelerator: Accelerator,
    ) -> None:
        self._mesh, self._communicators = mesh, communicators
        self._device, self._accelerator = device, accelerator
        self._group, self.is_first = TransferGroup(), True
        self.under_way = UnderWay("a transfer")
        self._guard = Guard(mesh, communicators, self.under_way)
        self._posted: dict[Message, deque[Expected]] = {}
        self._described = Descriptions(mesh)
        self._offered: dict[tuple[Message, int], TransferGroup] = {}  # sums, by destination

    def sender(self, route: Route, shapes: Shapes) -> Send:
        message, destination, is_sum = route.message, route.destination, _is_sum(route)
        self._described.add(route, shapes)

        def send(values: Values) -> None:
            layout, group = self._described.sent(route, values), self._group
            if is_sum:  # launched with what comes in return
                group = self._offered[message, destination] = TransferGroup()
            stream: Any = self._accelerator.entered
            for value, entry in zip(values, layout, strict=False):
                if isinstance(entry, TensorShape):
                    tensor = self._sent(value, entry)
                    tensor.record_stream(stream)
                    group.add(tensor, destination, is_send=True)

        return send

    def poster(self, route: Route, shapes: Shapes) -> Post:
        """What puts a receive into the group at hand."""
        posted = self._queue(route.message)
        self._described.add(route, shapes)

        def post() -> None:
            layout, is_heard = self._described.coming(route)
            values = self._received(layout, route.source, self._group)
            posted.append(Expected(values, self._group, is_heard))

        return post

    def receiver(self, route: Route, shapes: Shapes) -> Receive:
        message, posted = route.message, self._queue(route.message)

        def receive() -> Values:
            expected, group, is_heard = posted.popleft()
            self._wait(group)
            values: Values = expected
            if message.direction is Direction.GRADIENT and not is_heard:
                values = self._described.there(route, values)
            return self._handed(values)

        return receive

    def post(self, is_last: bool) -> None:
        """Launch the group at hand; in a first run each transfer by itself.

        CUDA loads a kernel when it is first used, and then ends all that was launched before. Only
        one by one do transfers not depend on what their ranks launch after them.
        """
        if is_last or self.is_first:
            group, self._group = self._group, TransferGroup()
            self._launch(group, self._communicators.wires)

    def meeting(self, outgoing: Sequence[Route], incoming: Sequence[Route]) -> Meet:
        """Gradients of copies, of whatever shapes they are."""
        offers = [(route.message, route.destination) for route in outgoing]

        def meet() -> list[Values]:
            group = TransferGroup()
            for offer in offers:
                group.join(self._offered.pop(offer))
            found = [
                self._received(self._described.header(route), route.source, group)
                for route in incoming
            ]
            self._launch(group, self._communicators.sums)
            self._wait(group)
            return [self._handed(values) for values in found]

        return meet

    def begin(self, incoming: Sequence[Route], outgoing: Sequence[Route]) -> None:
        """Forget what a run that failed has left."""
        self._group = TransferGroup()
        self._offered.clear()
        for posted in self._posted.values():
            posted.clear()
        self.go_on(incoming, outgoing)

    def go_on(self, incoming: Sequence[Route], outgoing: Sequence[Route]) -> None:
        """The program posts its receives itself."""
        self._described.begin(outgoing)

    def end(self) -> None:
        """Nobody waits for what was sent."""

    def abandon(self) -> None:
        """A kernel of this rank may wait endlessly for another one."""
        self._communicators.abort()

    def close(self) -> None:
        self._posted.clear()
        self.under_way.finish(self._mesh)
        self._guard.close()
        self._communicators.close()

    def _sent(self, value: Any, entry: TensorShape) -> Tensor:
        if value is None:  # nothing computed it
            return torch.zeros(entry.shape, dtype=entry.dtype, device=self._device)
        tensor: Tensor = value.to(self._device).contiguous()
        return tensor

    def _received(
        self, layout: Layout, source: int, group: TransferGroup
    ) -> list[Tensor | Structure | None]:
        values: list[Tensor | Structure | None] = []
        for entry in layout:
            if isinstance(entry, TensorShape):
                tensor = torch.empty(entry.shape, dtype=entry.dtype, device=self._device)
                group.add(tensor, source, is_send=False)
                values.append(tensor)
            else:
                values.append(entry)
        return values

    def _launch(self, group: TransferGroup, communicator: Any) -> None:
        """Launch it, and keep what it carries until it is over: NCCL has streams of its own."""
        with self._blamed():
            group.launch(communicator, self._device)
            self.under_way.add(group)

    def _wait(self, group: TransferGroup) -> None:
        with self._blamed():
            group.wait()

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        """Where a communicator fails or was aborted, the rank that failed is why.

        NCCL may notice first that a rank is gone.
        """
        try:
            yield
        except RuntimeError:
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline:
                self._mesh.look()
                time.sleep(GLANCE)
            raise

    def _handed(self, values: Values) -> Values:
        stream: Any = self._accelerator.entered
        for value in values:
            if isinstance(value, Tensor):
                value.record_stream(stream)
        return values

    def _queue(self, message: Message) -> deque[Expected]:
        return self._posted.setdefault(message, deque())


def _carried(tensor: Tensor) -> Tensor:
    """The same memory in numbers that NCCL knows."""
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    return tensor.reshape(-1).view(torch.uint8) if tensor.dtype in UNKNOWN else tensor


def _is_sum(route: Route) -> bool:
    return route.message.direction is Direction.BOTH

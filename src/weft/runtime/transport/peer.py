"""Memory of GPUs of one host, which ranks open across processes: copies instead of kernels.

    sender     its copy stream waits for the value, and until the block is free; copies the value
               in; records `filled`
    receiver   its copy stream waits for `filled`; copies the value out; records `emptied`; the
               stream that reads the value waits for that copy

Both hosts only launch, and let each other know what they have launched. No kernel waits for another
process, so that none can be waited for in a circle.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.errors import InputError, RankError
from weft.runtime.device.accelerator import Accelerator
from weft.runtime.ranks.mesh import Mesh
from weft.runtime.ranks.records import Record
from weft.runtime.transport.blocks import Announced, Block, BlocksGiven, IsUnread
from weft.runtime.transport.message import Values

PATIENCE = 2.0  # seconds for other ranks to let go of blocks
RECEIVING = "receive"  # the stream of copies out of blocks
SHARING = "share"  # one on which nothing waits


class Events(NamedTuple):
    """What two processes order their copies by."""

    filled: torch.cuda.Event
    emptied: torch.cuda.Event


class PeerMemory:
    """Blocks on the GPU of the sender, which the receiver opens."""

    is_read_late = True

    def __init__(self, mesh: Mesh, device: torch.device, accelerator: Accelerator) -> None:
        self._device, self._accelerator = device, accelerator
        self._parted: set[int] = set()  # ranks that have none of our blocks any more
        mesh.handle(Record.PARTED, lambda other, _: self._parted.add(other))
        self._receiving, self._sharing = map(accelerator.stream, (RECEIVING, SHARING))
        self._copied_out = accelerator.event()

    def make(self, number: int, size: int) -> Block:
        content = torch.empty(size, dtype=torch.uint8, device=self._device)
        made = (torch.cuda.Event(interprocess=True) for _ in range(2))  # type: ignore[no-untyped-call]
        return Block(number, content, Events(*made))

    def give(self, mesh: Mesh, destination: int, block: Block) -> bytes:
        """Without what torch does besides: an event is for all that was launched on a stream by
        now, and whatever its receiver launches next would wait for it, whoever reads the block.
        """
        handles = [event.ipc_handle() for event in block.held]
        stream = self._accelerator.entered
        self._accelerator.enter(self._sharing)
        try:
            *shared, _ = block.content.untyped_storage()._share_cuda_()  # type: ignore[no-untyped-call]
        finally:
            self._accelerator.enter(stream)
        return _written([*shared, False, *handles])

    def open(self, mesh: Mesh, source: int, announced: Announced) -> Block:
        *storage, filled, emptied = _read(announced.where)
        opened = torch.UntypedStorage._new_shared_cuda(*storage)
        content = torch.empty(0, dtype=torch.uint8, device=opened.device).set_(opened)
        events = Events(*map(self._opened_event, (filled, emptied)))
        return Block(announced.number, content, events)

    def _opened_event(self, handle: bytes) -> torch.cuda.Event:
        found: torch.cuda.Event = torch.cuda.Event.from_ipc_handle(self._device, handle)  # type: ignore[no-untyped-call]
        return found

    def fill(self, block: Block, views: Values, values: Values) -> None:
        stream: Any = self._accelerator.entered
        if block.is_given:
            stream.wait_event(block.held.emptied)
        for view, value in zip(views, values, strict=True):
            if isinstance(view, Tensor):
                view.copy_(value, non_blocking=True)
                if value.is_cuda:
                    value.record_stream(stream)
        block.held.filled.record(stream)

    def empty(self, block: Block, views: Values) -> Values:
        reader: Any = self._accelerator.entered
        stream: Any = self._receiving
        self._accelerator.enter(stream)
        try:
            stream.wait_event(block.held.filled)
            values = [self._copied(view) if isinstance(view, Tensor) else view for view in views]
            block.held.emptied.record(stream)
            self._copied_out.record(stream)
        finally:
            self._accelerator.enter(reader)
        reader.wait_event(self._copied_out)
        for value in values:
            if isinstance(value, Tensor):
                value.record_stream(reader)
        return values

    def part(
        self, mesh: Mesh, sources: Collection[int], given: BlocksGiven, is_unread: IsUnread
    ) -> None:
        """A GPU's memory goes with its process: whoever has opened it lets go of it before.

        Devices are later than their hosts: first this one has read all that it will, then others.
        """

        def is_read(receiver: int) -> bool:
            blocks = given[receiver]
            return not is_unread(receiver) and all(one.held.emptied.query() for one in blocks)

        with suppress(RankError):  # of a rank that has failed
            mesh.wait_for_device(self._copied_out.query, lambda: "what others have sent")
        for source in sources:
            mesh.send(source, Record.PARTED)
        with suppress(RankError):
            for receiver in given:
                is_done = partial(self._has_parted, receiver, is_read)
                mesh.wait_for_device(is_done, lambda: "what was sent to be read", receiver)
        deadline, mesh.deadline = mesh.deadline, PATIENCE
        with suppress(RankError):  # has gone without a word
            mesh.wait(lambda: self._parted.issuperset(given), lambda: "", *given)
        mesh.deadline = deadline

    def _has_parted(self, receiver: int, is_read: Callable[[int], bool]) -> bool:
        return receiver in self._parted or is_read(receiver)

    def _copied(self, view: Tensor) -> Tensor:
        """On this rank's GPU."""
        return torch.empty_like(view, device=self._device).copy_(view, non_blocking=True)


def check_reach(devices: Mapping[int, str]) -> None:
    """Refuse GPUs, by rank and name, that this process cannot read from."""
    visible = {identity(torch.device("cuda", i)): i for i in range(torch.cuda.device_count())}
    own = torch.cuda.current_device()
    for rank, name in devices.items():
        other = visible.get(name)
        if other is None:
            raise InputError(
                f"transport='peer': this process does not see the GPU of rank {rank}, which hides"
                f" from it (CUDA_VISIBLE_DEVICES); let every rank see all GPUs of the host, or use"
                f" transport='nccl' or 'shared'"
            )
        if other != own and not torch.cuda.can_device_access_peer(own, other):
            raise InputError(
                f"transport='peer': GPU {own} cannot read from GPU {other}, that of rank {rank};"
                f" use transport='nccl' or 'shared'"
            )


def identity(device: torch.device) -> str:
    """What a GPU is called in all processes."""
    return str(torch.cuda.get_device_properties(device).uuid)


def _written(parts: Sequence[Any]) -> bytes:
    """Numbers, and bytes as text."""
    return json.dumps([{"x": p.hex()} if isinstance(p, bytes) else p for p in parts]).encode()


def _read(content: bytes) -> list[Any]:
    parts = json.loads(content)
    return [bytes.fromhex(part["x"]) if isinstance(part, dict) else part for part in parts]

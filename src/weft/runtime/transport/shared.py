"""Shared memory between the ranks of one host.

    sender     copies the values into a free block, tells the receiver where they lie
    receiver   copies them out when it waits anyway, and gives credit for the block

Nobody waits for the other: a sender goes on as soon as its copy is made, up to `window` messages
for each receiver. Blocks have no name in any file system and vanish with the last process.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from weft.runtime.mesh import Mesh, Record
from weft.runtime.message import (
    NAME,
    Form,
    Forms,
    Layout,
    Message,
    Receive,
    Route,
    Send,
    Values,
    layout_of,
    name_in,
    named,
    read,
    written,
)

PAGE, ALIGNMENT = 4096, 64
HEAD = struct.Struct("<iq?")  # number and size of the block; whether its file comes along
COUNT = struct.Struct("<I")


@dataclass(eq=False, slots=True)
class Block:
    """Memory that two processes see, and the tensors that were laid out in it."""

    number: int
    size: int
    file: int
    content: Tensor
    is_given: bool = False  # whether the other end has it
    views: dict[tuple[int, Form], Tensor] = field(default_factory=dict)

    @classmethod
    def made(cls, number: int, size: int) -> Block:
        """New memory, without a name in any file system."""
        file = os.memfd_create("weft")
        os.ftruncate(file, size)
        return cls(number, size, file, _mapped(file, size))

    @classmethod
    def taken(cls, number: int, size: int, file: int) -> Block:
        """Memory that another process made."""
        try:
            return cls(number, size, file, _mapped(file, size))
        finally:
            os.close(file)

    def view(self, place: int, form: Form) -> Tensor:
        """The tensor of that form at that place."""
        found = self.views.get((place, form))
        if found is None:
            flat = self.content[place : place + _size(form)].view(form.dtype)
            found = self.views[place, form] = flat.view(form.shape)
        return found


class Shared:
    """Messages through blocks of shared memory, told over the mesh."""

    def __init__(self, mesh: Mesh, *, window: int) -> None:
        self._mesh = mesh
        self._window, self._flush = window, max(1, window // 2)
        self._free: dict[tuple[int, int], list[Block]] = defaultdict(list)
        self._used: dict[int, deque[Block]] = defaultdict(deque)  # by receiver, oldest first
        self._seen: dict[tuple[int, int], Block] = {}  # blocks of others
        self._arrived: dict[Message, deque[Values]] = defaultdict(deque)
        self._owed: dict[int, int] = defaultdict(int)  # credit not given yet
        self._blocks = 0
        mesh.handle(Record.DATA, self._on_data)
        mesh.handle(Record.CREDIT, self._on_credit)

    def sender(self, route: Route, forms: Forms) -> Send:
        message, destination = route.message, route.destination
        mesh, used, window = self._mesh, self._used[destination], self._window
        name = named(message)

        def send(values: Values) -> None:
            if len(used) >= window:
                self._make_room(route)
            layout = layout_of(values)
            size, places = _laid_out(layout)
            block = self._block(destination, size)
            for place, form, value in zip(places, layout, values, strict=True):
                if form is not None and value is not None:
                    block.view(place, form).copy_(value)
            used.append(block)
            if block.is_given:
                told = name + HEAD.pack(block.number, block.size, False) + written(layout)
                mesh.tell(destination, Record.DATA, told)
            else:
                self._give(route, block, written(layout))

        return send

    def receiver(self, route: Route, forms: Forms) -> Receive:
        mesh, source, arrived = self._mesh, route.source, self._arrived[route.message]

        def receive() -> Values:
            if not arrived:
                mesh.wait(lambda: bool(arrived), lambda: str(route), source)
            return arrived.popleft()

        return receive

    def begin(self, incoming: Sequence[Route], outgoing: Sequence[Route]) -> None:
        """Forms travel with the messages: nothing to prepare."""

    def abandon(self) -> None:
        """The mesh tells the others; no wait of theirs depends on this transport."""

    def end(self) -> None:
        """Give the credit that is owed; what was sent needs no one to wait for it."""
        for source in self._owed:
            self._give_credit(source)

    def _block(self, destination: int, size: int) -> Block:
        room = max(PAGE, 1 << (size - 1).bit_length())
        free = self._free[destination, room]
        if free:
            return free.pop()
        self._blocks += 1
        return Block.made(self._blocks, room)

    def _give(self, route: Route, block: Block, layout: bytes) -> None:
        """Tell of a message in a block that its receiver does not have yet."""
        told = named(route.message) + HEAD.pack(block.number, block.size, True) + layout
        self._mesh.give(route.destination, Record.DATA, told, block.file)
        os.close(block.file)
        block.is_given = True

    def _make_room(self, route: Route) -> None:
        """Wait for credit; what arrives meanwhile is taken, so that no two ranks lock up."""
        used, window = self._used[route.destination], self._window
        self._mesh.wait(
            lambda: len(used) < window,
            lambda: f"device {route.destination} to read what was sent before {route.action}",
            route.destination,
        )

    def _on_data(self, source: int, content: bytes) -> None:
        number, size, is_new = HEAD.unpack_from(content, NAME.size)
        if is_new:
            self._seen[source, number] = Block.taken(number, size, self._mesh.given(source))
        block = self._seen[source, number]
        values = _taken(block, read(content[NAME.size + HEAD.size :]))
        self._arrived[name_in(content)].append(values)
        self._owed[source] += 1
        if self._owed[source] >= self._flush:
            self._give_credit(source)

    def _give_credit(self, source: int) -> None:
        if self._owed[source]:
            self._mesh.tell(source, Record.CREDIT, COUNT.pack(self._owed[source]))
            self._owed[source] = 0

    def _on_credit(self, destination: int, content: bytes) -> None:
        used = self._used[destination]
        for _ in range(COUNT.unpack(content)[0]):
            block = used.popleft()
            self._free[destination, block.size].append(block)


def _mapped(file: int, size: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(file, size), dtype=torch.uint8)


@lru_cache(maxsize=256)
def _laid_out(layout: Layout) -> tuple[int, list[int]]:
    """Bytes of a block that holds these, and where each lies."""
    size, places = 0, []
    for form in layout:
        places.append(size)
        if form is not None:
            size += -(-_size(form) // ALIGNMENT) * ALIGNMENT
    return max(1, size), places


def _taken(block: Block, layout: Layout) -> Values:
    """Copies of the values in a block."""
    _, places = _laid_out(layout)
    return [
        None if form is None else block.view(place, form).clone()
        for place, form in zip(places, layout, strict=True)
    ]


def _size(form: Form) -> int:
    return form.dtype.itemsize * math.prod(form.shape)

"""Shared memory between the ranks of one host.

    sender     copies the values into a free block, sends the receiver where they lie
    receiver   copies them out when it waits anyway, and gives credit for the block

Nobody waits for the other: a sender goes on as soon as its copy is made, up to a window of
messages for each receiver. Blocks have no name in any file system and vanish with the last process.
Threads of a rank copy at the same time, and announce their messages one by one.
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
from threading import Lock
from typing import TypeVar

import torch
from torch import Tensor

from weft.runtime.ranks.mesh import Mesh
from weft.runtime.ranks.records import Record, framed
from weft.runtime.ranks.window import Windows
from weft.runtime.stage.values import Structure
from weft.runtime.transport.message import (
    NAME,
    Layout,
    Message,
    Receive,
    Route,
    Send,
    Shapes,
    TensorShape,
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
KEPT = 1 << 10  # of what is worked out once for a block: shapes may change indefinitely
KNOWN = 1 << 14  # of what is worked out once for all blocks

Key = TypeVar("Key")
Kept = TypeVar("Kept")


@dataclass(eq=False, slots=True)
class Parcel:
    """How a message of a certain layout is packed: what is worked out once is kept."""

    message: Message
    layout: Layout
    room: int  # bytes of the block
    free: list[Block]  # of that room, and the same receiver

    def frame(self, block: Block, *, is_new: bool) -> bytes:
        """What the receiver is sent of it."""
        head = HEAD.pack(block.number, block.size, is_new)
        return framed(Record.DATA, named(self.message) + head + written(self.layout))


@dataclass(eq=False, slots=True)
class Block:
    """Memory that two processes see, and what was laid out in it before."""

    number: int
    size: int
    file: int
    content: Tensor
    is_given: bool = False  # whether the receiver has its file
    views: dict[Layout, Values] = field(default_factory=dict)
    packed: dict[Parcel, tuple[bytes, Values]] = field(default_factory=dict)  # sent, and where

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

    def values(self, layout: Layout) -> Values:
        """The tensors of that layout."""
        found = self.views.get(layout)
        if found is None:
            _, places = _laid_out(layout)
            found = [self._view(*pair) for pair in zip(places, layout, strict=True)]
            _keep(self.views, KEPT, layout, found)
        return found

    def _view(self, place: int, entry: TensorShape | Structure | None) -> Tensor | Structure | None:
        if not isinstance(entry, TensorShape):
            return entry
        flat = self.content[place : place + _size(entry)].view(entry.dtype)
        return flat.view(entry.shape)


class Shared:
    """Messages through blocks of shared memory, announced over the mesh.

    Several threads may send and receive, each its own messages; a sender is then ahead by a window
    and one more message for each further thread at most.
    """

    is_ordered = False

    def __init__(self, mesh: Mesh, windows: Windows) -> None:
        self._mesh, self._windows = mesh, windows
        self._free: dict[tuple[int, int], list[Block]] = defaultdict(list)
        self._used: dict[int, deque[Block]] = defaultdict(deque)  # by receiver, oldest first
        self._blocks = 0
        self._seen: dict[tuple[int, int], Block] = {}  # blocks of others
        self._known: dict[tuple[int, bytes], tuple[deque[Values], Values]] = {}
        self._arrived: dict[Message, deque[Values]] = {}
        self._owed: dict[int, int] = defaultdict(int)  # credit not given yet
        self._announcing = Lock()  # in the order of `_used`, by which credit is given
        mesh.handle(Record.DATA, self._on_data)
        mesh.handle(Record.CREDIT, self._on_credit)

    def sender(self, route: Route, shapes: Shapes) -> Send:
        destination, used = route.destination, self._used[route.destination]
        window = self._windows[route.source, destination]
        mesh, announcing, last = self._mesh, self._announcing, self._parcel(route, ())

        def send(values: Values) -> None:
            nonlocal last
            layout = layout_of(values)
            if layout != last.layout:
                last = self._parcel(route, layout)
            if len(used) >= window:
                self._make_room(route)
            try:
                block = last.free.pop()
            except IndexError:
                block = self._block(last.room)
            packed = block.packed.get(last)
            frame, views = packed if packed is not None else self._packed(block, last)
            for view, value in zip(views, values, strict=True):
                if isinstance(view, Tensor):
                    view.copy_(value)
            with announcing:
                if not block.is_given:
                    frame = self._given(destination, block, last)
                used.append(block)
                mesh.post(destination, frame)

        return send

    def receiver(self, route: Route, shapes: Shapes) -> Receive:
        mesh, source, arrived = self._mesh, route.source, self._queue(route.message)

        def receive() -> Values:
            if not arrived:
                mesh.wait(arrived.__len__, route.__str__, source)
            return arrived.popleft()

        return receive

    def begin(self, incoming: Sequence[Route], outgoing: Sequence[Route]) -> None:
        """Shapes travel with the messages: nothing to prepare."""

    def go_on(self, incoming: Sequence[Route], outgoing: Sequence[Route]) -> None:
        """Nothing to prepare."""

    def abandon(self) -> None:
        """The mesh informs the others; no wait of theirs depends on this transport."""

    def end(self) -> None:
        """Give the credit that is owed; what was sent needs no one to wait for it."""
        for source in self._owed:
            self._give_credit(source)

    def close(self) -> None:
        """Forget all blocks, also where senders and receivers know them."""
        for blocks in (*self._free.values(), *self._used.values()):
            blocks.clear()
        self._seen.clear()
        self._known.clear()

    def _parcel(self, route: Route, layout: Layout) -> Parcel:
        size, _ = _laid_out(layout)
        room = max(PAGE, 1 << (size - 1).bit_length())
        free = self._free[route.destination, room]
        return Parcel(route.message, layout, room, free)

    def _queue(self, message: Message) -> deque[Values]:
        """Where a message arrives; in one operation of the table, as any thread may be first."""
        return self._arrived.setdefault(message, deque())

    def _block(self, room: int) -> Block:
        with self._announcing:
            self._blocks += 1
            return Block.made(self._blocks, room)

    def _packed(self, block: Block, parcel: Parcel) -> tuple[bytes, Values]:
        """What to announce of a parcel in this block, and where it goes."""
        packed = parcel.frame(block, is_new=False), block.values(parcel.layout)
        _keep(block.packed, KEPT, parcel, packed)
        return packed

    def _given(self, destination: int, block: Block, parcel: Parcel) -> bytes:
        """What to announce of a parcel in a new block, which is given to the receiver."""
        self._mesh.give(destination, block.file)
        os.close(block.file)
        block.is_given = True
        return parcel.frame(block, is_new=True)

    def _make_room(self, route: Route) -> None:
        """Wait for credit; what arrives meanwhile is taken, so that no two ranks lock up."""
        used = self._used[route.destination]
        window = self._windows[route.source, route.destination]
        self._mesh.wait(
            lambda: len(used) < window,
            lambda: f"device {route.destination} to read what was sent before {route.action}",
            route.destination,
        )

    def _on_data(self, source: int, content: bytes) -> None:
        known = self._known.get((source, content))
        arrived, views = known if known is not None else self._opened(source, content)
        arrived.append([view.clone() if isinstance(view, Tensor) else view for view in views])
        self._owed[source] += 1
        if 2 * self._owed[source] >= self._windows[source, self._mesh.rank]:
            self._give_credit(source)

    def _opened(self, source: int, content: bytes) -> tuple[deque[Values], Values]:
        """Where a message belongs, and where its values lie."""
        number, size, is_new = HEAD.unpack_from(content, NAME.size)
        if is_new:
            self._seen[source, number] = Block.taken(number, size, self._mesh.given(source))
        views = self._seen[source, number].values(read(content[NAME.size + HEAD.size :]))
        found = self._queue(name_in(content)), views
        if not is_new:
            _keep(self._known, KNOWN, (source, content), found)
        return found

    def _give_credit(self, source: int) -> None:
        if self._owed[source]:
            self._mesh.send(source, Record.CREDIT, COUNT.pack(self._owed[source]))
            self._owed[source] = 0

    def _on_credit(self, destination: int, content: bytes) -> None:
        used = self._used[destination]
        for _ in range(COUNT.unpack(content)[0]):
            block = used.popleft()
            self._free[destination, block.size].append(block)


def _keep(kept: dict[Key, Kept], most: int, key: Key, value: Kept) -> None:
    """Remember something, and forget all else where that is too much."""
    if len(kept) >= most:
        kept.clear()
    kept[key] = value


def _mapped(file: int, size: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(file, size), dtype=torch.uint8)


@lru_cache(maxsize=256)
def _laid_out(layout: Layout) -> tuple[int, list[int]]:
    """Bytes of a block that holds these, and where each lies."""
    size, places = 0, []
    for entry in layout:
        places.append(size)
        if isinstance(entry, TensorShape):
            size += -(-_size(entry) // ALIGNMENT) * ALIGNMENT
    return max(1, size), places


def _size(shape: TensorShape) -> int:
    return shape.dtype.itemsize * math.prod(shape.shape)

"""Blocks: memory that two ranks see, and the messages that are laid out in it."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, TypeVar

from torch import Tensor

from weft.runtime.ranks.mesh import Mesh
from weft.runtime.ranks.records import Record, framed
from weft.runtime.stage.values import Structure
from weft.runtime.transport.message import (
    NAME,
    Layout,
    Message,
    TensorShape,
    Values,
    named,
    read,
    written,
)

PAGE, ALIGNMENT = 4096, 64
HEAD = struct.Struct("<iqH")  # number and size of the block; bytes that say where a new one is
KEPT = 1 << 10  # of what is worked out once for a block: shapes may change indefinitely

BlocksGiven: TypeAlias = Mapping[int, Sequence["Block"]]  # blocks that each receiver knows
IsUnread: TypeAlias = Callable[[int], bool]  # whether a receiver has something left to read

Key = TypeVar("Key")
Kept = TypeVar("Kept")


@dataclass(eq=False, slots=True)
class Block:
    """Memory that two processes see, and what was laid out in it before.

    `held` is what its memory needs besides: a file, or events.
    """

    number: int
    content: Tensor  # bytes
    held: Any = None
    is_given: bool = False  # whether the receiver knows it
    views: dict[Layout, Values] = field(default_factory=dict)
    packed: dict[Parcel, tuple[bytes, Values]] = field(default_factory=dict)  # sent, and where

    @property
    def size(self) -> int:
        return self.content.numel()

    def values(self, layout: Layout) -> Values:
        """The tensors of that layout."""
        found = self.views.get(layout)
        if found is None:
            _, places = laid_out(layout)
            found = [self._view(*pair) for pair in zip(places, layout, strict=True)]
            keep(self.views, KEPT, layout, found)
        return found

    def _view(self, place: int, entry: TensorShape | Structure | None) -> Tensor | Structure | None:
        if not isinstance(entry, TensorShape):
            return entry
        flat = self.content[place : place + _size(entry)].view(entry.dtype)
        return flat.view(entry.shape)


@dataclass(eq=False, slots=True)
class Parcel:
    """How a message of a certain layout is packed: what is worked out once is kept."""

    message: Message
    layout: Layout
    room: int  # bytes of the block
    free: list[Block]  # of that room, and the same receiver

    def frame(self, block: Block, where: bytes = b"") -> bytes:
        """What the receiver is sent of it; a new block comes with where it is."""
        head = HEAD.pack(block.number, block.size, len(where))
        return framed(Record.DATA, named(self.message) + head + where + written(self.layout))

    def packed(self, block: Block) -> tuple[bytes, Values]:
        """What to announce of it in a block that is known, and where its values go."""
        found = block.packed.get(self)
        if found is None:
            found = self.frame(block), block.values(self.layout)
            keep(block.packed, KEPT, self, found)
        return found


class Announced:
    """What a record says of a message."""

    __slots__ = ("layout", "number", "size", "where")

    def __init__(self, content: bytes) -> None:
        self.number, self.size, length = HEAD.unpack_from(content, NAME.size)
        start = NAME.size + HEAD.size
        self.where = content[start : start + length]
        self.layout = read(content[start + length :])


class BlockMemory(Protocol):
    """Where blocks lie: memory of a host, or of GPUs.

    `is_read_late` where values stay in their block until somebody reads them.
    """

    is_read_late: bool

    def make(self, number: int, size: int) -> Block:
        """A new block."""

    def give(self, mesh: Mesh, destination: int, block: Block) -> bytes:
        """Let a rank open it, by what is answered, which is not empty."""

    def open(self, mesh: Mesh, source: int, announced: Announced) -> Block:
        """A block that another rank gave."""

    def fill(self, block: Block, views: Values, values: Values) -> None:
        """Copy values into a block."""

    def empty(self, block: Block, views: Values) -> Values:
        """Copy values out of a block, which may be filled again then."""

    def part(
        self, mesh: Mesh, sources: Collection[int], given: BlocksGiven, is_unread: IsUnread
    ) -> None:
        """Let ranks know that their blocks are no longer used; wait for those that use ours."""


def parcel(message: Message, layout: Layout, free: dict[int, list[Block]]) -> Parcel:
    """How a message is packed, with the free blocks by room that its receiver has."""
    size, _ = laid_out(layout)
    room = max(PAGE, 1 << (size - 1).bit_length())
    return Parcel(message, layout, room, free[room])


def keep(kept: dict[Key, Kept], most: int, key: Key, value: Kept) -> None:
    """Remember something, and forget all else where that is too much."""
    if len(kept) >= most:
        kept.clear()
    kept[key] = value


@lru_cache(maxsize=256)
def laid_out(layout: Layout) -> tuple[int, list[int]]:
    """Bytes of a block that holds these, and where each lies."""
    size, places = 0, []
    for entry in layout:
        places.append(size)
        if isinstance(entry, TensorShape):
            size += -(-_size(entry) // ALIGNMENT) * ALIGNMENT
    return max(1, size), places


def _size(shape: TensorShape) -> int:
    return shape.dtype.itemsize * math.prod(shape.shape)

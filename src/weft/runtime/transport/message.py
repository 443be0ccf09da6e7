"""Messages: what passes between devices, by name and never by the order of arrival."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from weft.ir.kinds import Direction
from weft.runtime.stage import structures
from weft.runtime.stage.values import Structure

DIRECTIONS = tuple(Direction)
DTYPES = tuple(
    sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
)
CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
STRUCTURE, NOTHING = 254, 255  # in the place of a dtype
LENGTH = struct.Struct("<I")

Values: TypeAlias = Sequence[Any]  # tensors; None for gradients that nothing computed; a Structure
Send: TypeAlias = Callable[[Values], None]
Receive: TypeAlias = Callable[[], Values]
Post: TypeAlias = Callable[[], None]
Meet: TypeAlias = Callable[[], list[Values]]  # what has come, route by route


class Message(NamedTuple):
    """What a message is: an edge's activation or gradient of one microbatch.

    Direction BOTH marks gradients of weights, exchanged between copies: `edge` is then the
    number of the exchange and `microbatch` that of the copy.
    """

    edge: int
    direction: Direction
    microbatch: int


class Route(NamedTuple):
    """A message with its two ends, and the action that computes it.

    Of two routes with the same ends and direction, the one with the lower turn is sent first.
    """

    message: Message
    source: int
    destination: int
    action: str  # 2F0
    turn: int

    def __str__(self) -> str:
        return f"{self.action} of device {self.source}"


class TensorShape(NamedTuple):
    """Shape and type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> TensorShape:
        return cls(tuple(tensor.shape), tensor.dtype)


Layout: TypeAlias = tuple[TensorShape | Structure | None, ...]


class Shapes(Protocol):
    """The shapes of a message in the run at hand.

    `is_agreed` where both ends know the same of them; else what its sender knows counts.
    """

    is_agreed: bool

    def __call__(self) -> Layout | None:
        """What is known of them before it is sent."""

    def learn(self, layout: Layout | None) -> None:
        """What its sender knows of them."""

    def see(self, layout: Layout) -> None:
        """What they were, where that was not known."""


class Fixed:
    """Shapes that never change."""

    is_agreed = True

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def __call__(self) -> Layout:
        return self._layout

    def learn(self, layout: Layout | None) -> None:
        """They are known."""

    def see(self, layout: Layout) -> None:
        """They are known."""


class Unknown:
    """Shapes that travel with every message."""

    is_agreed = True

    def __call__(self) -> None:
        """Never known before."""

    def learn(self, layout: Layout | None) -> None:
        """Nobody knows them before."""

    def see(self, layout: Layout) -> None:
        """The next message may differ."""


def layout_of(values: Values) -> Layout:
    return tuple(
        [TensorShape.of(value) if isinstance(value, Tensor) else value for value in values]
    )


# As bytes: the name of a message, and the shapes of its values.

NAME = struct.Struct("<iBi")


def named(message: Message) -> bytes:
    return NAME.pack(message.edge, DIRECTIONS.index(message.direction), message.microbatch)


def name_in(content: bytes) -> Message:
    edge, direction, microbatch = NAME.unpack_from(content)
    return Message(edge, DIRECTIONS[direction], microbatch)


@lru_cache(maxsize=256)
def written(layout: Layout) -> bytes:
    """A dtype, a number of dimensions, and each dimension, for every value; a structure as text."""
    content = b""
    for entry in layout:
        if entry is None:
            content += bytes((NOTHING, 0))
        elif isinstance(entry, Structure):
            text = structures.written(entry)
            content += bytes((STRUCTURE, 0)) + LENGTH.pack(len(text)) + text
        else:
            sizes = struct.pack(f"<{len(entry.shape)}q", *entry.shape)
            content += bytes((CODES[entry.dtype], len(entry.shape))) + sizes
    return content


@lru_cache(maxsize=256)
def read(content: bytes) -> Layout:
    """What `written` wrote."""
    layout: list[TensorShape | Structure | None] = []
    place = 0
    while place < len(content):
        code, dimensions = content[place], content[place + 1]
        place += 2
        if code == STRUCTURE:
            (length,) = LENGTH.unpack_from(content, place)
            place += LENGTH.size
            layout.append(structures.read(content[place : place + length]))
            place += length
            continue
        shape = struct.unpack_from(f"<{dimensions}q", content, place)
        layout.append(None if code == NOTHING else TensorShape(shape, DTYPES[code]))
        place += 8 * dimensions
    return tuple(layout)

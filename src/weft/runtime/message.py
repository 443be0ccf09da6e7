"""Messages: what passes between devices, by name and never by the order of arrival."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from weft.ir.kinds import Direction

DIRECTIONS = tuple(Direction)
DTYPES = tuple(
    sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
)
CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
NOTHING = 255  # in the place of a dtype

Values: TypeAlias = Sequence[Tensor | None]
Send: TypeAlias = Callable[[Values], None]
Receive: TypeAlias = Callable[[], Values]


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


class Form(NamedTuple):
    """Shape and type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Form:
        return cls(tuple(tensor.shape), tensor.dtype)


Forms: TypeAlias = Callable[[], Sequence[Form | None] | None]  # None where they are not known
Layout: TypeAlias = tuple[Form | None, ...]


def layout_of(values: Values) -> Layout:
    return tuple(None if value is None else Form.of(value) for value in values)


# As bytes: the name of a message, and the forms of its values.

NAME = struct.Struct("<iBi")


def named(message: Message) -> bytes:
    return NAME.pack(message.edge, DIRECTIONS.index(message.direction), message.microbatch)


def name_in(content: bytes) -> Message:
    edge, direction, microbatch = NAME.unpack_from(content)
    return Message(edge, DIRECTIONS[direction], microbatch)


@lru_cache(maxsize=256)
def written(layout: Layout) -> bytes:
    """A dtype, a number of dimensions, and each dimension, for every value."""
    told = b""
    for form in layout:
        if form is None:
            told += bytes((NOTHING, 0))
        else:
            sizes = struct.pack(f"<{len(form.shape)}q", *form.shape)
            told += bytes((CODES[form.dtype], len(form.shape))) + sizes
    return told


@lru_cache(maxsize=256)
def read(content: bytes) -> Layout:
    """What `written` wrote."""
    layout: list[Form | None] = []
    place = 0
    while place < len(content):
        code, dimensions = content[place], content[place + 1]
        shape = struct.unpack_from(f"<{dimensions}q", content, place + 2)
        layout.append(None if code == NOTHING else Form(shape, DTYPES[code]))
        place += 2 + 8 * dimensions
    return tuple(layout)

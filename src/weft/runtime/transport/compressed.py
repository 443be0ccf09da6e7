"""Compressed: values in fewer bits, through any transport.

    values    [ x, ids, None, structure ]
    packed    [ bytes of x, ids, None, note of x, None, None, structure ]

A note says what a tensor was: it is part of the layout, which travels where it is not known. So all
messages of an edge have one layout, whatever their values are, and transports know nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.ir.kinds import Direction
from weft.runtime.compression import Compression, is_smaller
from weft.runtime.device.accelerator import used_here
from weft.runtime.stage.values import Structure
from weft.runtime.transport import OrderedTransport, Transport, meeting
from weft.runtime.transport.message import (
    CODES,
    DTYPES,
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
    layout_of,
)
from weft.runtime.transport.narrow import narrow_shape, narrowed, widened


class Compressed:
    """The ends of messages of a transport, with what they carry along some edges compressed."""

    def __init__(self, transport: Transport, by_edge: Sequence[Compression | None]) -> None:
        self._transport, self._by_edge = transport, by_edge

    def sender(self, route: Route, shapes: Shapes) -> Send:
        dtype = self._dtype(route.message)
        if dtype is None:
            return self._transport.sender(route, shapes)
        send = self._transport.sender(route, PackedShapes(shapes, dtype))

        def send_packed(values: Values) -> None:
            used_here(values)
            send(packed(values, dtype))

        return send_packed

    def receiver(self, route: Route, shapes: Shapes) -> Receive:
        dtype = self._dtype(route.message)
        if dtype is None:
            return self._transport.receiver(route, shapes)
        receive = self._transport.receiver(route, PackedShapes(shapes, dtype))
        return lambda: unpacked(receive(), dtype)

    def poster(self, route: Route, shapes: Shapes) -> Post:
        assert isinstance(self._transport, OrderedTransport)
        dtype = self._dtype(route.message)
        known = shapes if dtype is None else PackedShapes(shapes, dtype)
        return self._transport.poster(route, known)

    def post(self, is_last: bool) -> None:
        assert isinstance(self._transport, OrderedTransport)
        self._transport.post(is_last)

    def meeting(self, outgoing: Sequence[Route], incoming: Sequence[Route]) -> Meet:
        """Of gradients of weights, which are never compressed."""
        return meeting(self._transport, outgoing, incoming)

    def begin(self, incoming: Sequence[Route], outgoing: Sequence[Route]) -> None:
        self._transport.begin(incoming, outgoing)

    def go_on(self, incoming: Sequence[Route], outgoing: Sequence[Route]) -> None:
        self._transport.go_on(incoming, outgoing)

    def end(self) -> None:
        self._transport.end()

    def abandon(self) -> None:
        self._transport.abandon()

    def close(self) -> None:
        self._transport.close()

    def _dtype(self, message: Message) -> torch.dtype | None:
        """What a message is compressed to; sums of gradients are left as they are."""
        asked = None if message.direction is Direction.BOTH else self._by_edge[message.edge]
        return None if asked is None else asked.dtype(message.direction)


class PackedShapes:
    """The shapes of messages as they travel, by those of the values."""

    def __init__(self, shapes: Shapes, dtype: torch.dtype) -> None:
        self._shapes, self._dtype = shapes, dtype
        self.is_agreed = shapes.is_agreed

    def __call__(self) -> Layout | None:
        layout = self._shapes()
        return None if layout is None else packed_layout(layout, self._dtype)

    def learn(self, layout: Layout | None) -> None:
        self._shapes.learn(None if layout is None else unpacked_layout(layout))

    def see(self, layout: Layout) -> None:
        self._shapes.see(unpacked_layout(layout))


def packed(values: Values, dtype: torch.dtype) -> Values:
    """What travels of these, as `packed_layout` says."""
    leaves, notes, structure = _noted(layout_of(values), dtype)
    pairs = zip(values[: len(leaves)], notes, strict=True)
    sent = [value if note is None else narrowed(value, dtype) for value, note in pairs]
    return [*sent, *notes, *structure]


def unpacked(content: Values, dtype: torch.dtype) -> Values:
    """The values that were packed, rounded."""
    half = len(content) // 2
    pairs = zip(content[:half], content[half : 2 * half], strict=True)
    return [
        value if note is None else widened(value, _shape_of(note), dtype) for value, note in pairs
    ] + [*content[2 * half :]]


def packed_layout(layout: Layout, dtype: torch.dtype) -> Layout:
    leaves, notes, structure = _noted(layout, dtype)
    pairs = zip(leaves, notes, strict=True)
    sent = [leaf if note is None else narrow_shape(leaf, dtype) for leaf, note in pairs]
    return (*sent, *notes, *structure)


def unpacked_layout(layout: Layout) -> Layout:
    half = len(layout) // 2
    pairs = zip(layout[:half], layout[half : 2 * half], strict=True)
    found = [leaf if note is None else _shape_of(note) for leaf, note in pairs]
    return (*found, *layout[2 * half :])


def _noted(
    layout: Layout, dtype: torch.dtype
) -> tuple[Sequence[Any], list[Structure | None], Layout]:
    """The tensors of a layout, a note for each that is compressed, and the structure if it has one.

    Nothing in place of what is not there, or not compressed.
    """
    count = len(layout) - isinstance(layout[-1] if layout else None, Structure)
    return layout[:count], [_note(one, dtype) for one in layout[:count]], layout[count:]


def _note(entry: Any, dtype: torch.dtype) -> Structure | None:
    """What a tensor is before it is compressed, as other ranks can read it."""
    if entry is None or not is_smaller(entry.shape, entry.dtype, dtype):
        return None
    return Structure(tuple, (CODES[entry.dtype], *entry.shape))


def _shape_of(note: Any) -> TensorShape:
    code, *shape = note.keys
    return TensorShape(tuple(shape), DTYPES[code])

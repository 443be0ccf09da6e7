"""Descriptions: what messages are, in the words of whoever sends them, where they carry no shapes.

    before a run     of 1F0 to 1F7: 2 x 8 float32     of 1F8: its header says it
    header           beside a message: its shapes, or which gradients there are

Every rank outlines the stages of all others, but who has a stage knows more: a hook, a table that a
first forward has made, or what learns may have changed there alone. So receives are posted by what
the other end says.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from weft.errors import WeftError
from weft.ir.kinds import Direction
from weft.runtime.ranks.mesh import Mesh
from weft.runtime.ranks.records import Record
from weft.runtime.stage.values import Structure, plain
from weft.runtime.transport.message import (
    NAME,
    Layout,
    Message,
    Route,
    Shapes,
    TensorShape,
    Values,
    layout_of,
    name_in,
    named,
    read,
    written,
)

Described: TypeAlias = dict[Message, Layout | None]  # None where a header will say it

SAME = b""  # as in the run before
LENGTH, PLACE = struct.Struct("<I"), struct.Struct("<i")
IN_HEADER = -1  # in the place of a layout


class Coming(NamedTuple):
    """What a receive is posted for, and whether the header was read."""

    layout: Layout
    is_heard: bool


class Descriptions:
    """What this rank says of its messages, and what others have said of theirs."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._shapes: dict[Message, Shapes] = {}
        self._said: dict[int, bytes] = {}  # last, by destination
        self._heard: dict[int, Described] = {}  # last, by source
        self._runs: Mapping[int, deque[Described]] = {rank: deque() for rank in range(mesh.ranks)}
        self._headers: dict[Message, deque[bytes]] = {}
        mesh.handle(Record.DESCRIBED, self._on_described)
        mesh.handle(Record.HEADER, self._on_header)

    def add(self, route: Route, shapes: Shapes) -> None:
        """Take what is known here of a message that this rank sends or receives."""
        self._shapes[route.message] = shapes

    # sent

    def begin(self, outgoing: Iterable[Route]) -> None:
        """Before a run: describe what its ends might not agree on."""
        runs: dict[int, Described] = {}
        for route in outgoing:
            shapes = self._shapes.get(route.message)
            if shapes is not None and not shapes.is_agreed:
                runs.setdefault(route.destination, {})[route.message] = shapes()
        for destination, run in runs.items():
            content = _written(run)
            news = SAME if content == self._said.get(destination) else content
            self._said[destination] = content
            self._mesh.send(destination, Record.DESCRIBED, news)

    def sent(self, route: Route, values: Values) -> Layout:
        """As what a message is sent; of a gradient, the header says what of it there is."""
        message, shapes = route.message, self._shapes[route.message]
        found, known = layout_of(values), shapes()
        if known is None or message.direction is Direction.GRADIENT:
            shapes.see(found)
            self._mesh.send(route.destination, Record.HEADER, named(message) + written(found))
        if known is None:
            return found
        if not _is_within(found, known):
            raise _changed(route, known, found)
        return known

    # received

    def coming(self, route: Route) -> Coming:
        """What a message will be; waits until that was said."""
        shapes = self._shapes[route.message]
        if shapes.is_agreed:
            layout = shapes()
        else:
            layout = self._described(route)
            shapes.learn(layout)
        if layout is not None:
            return Coming(layout, is_heard=False)
        layout = self.header(route)
        shapes.see(layout)
        return Coming(layout, is_heard=True)

    def known(self, route: Route) -> Layout | None:
        """The same as far as it was said by now."""
        shapes = self._shapes[route.message]
        if shapes.is_agreed:
            return shapes()
        run = self._run(route)
        return None if run is None else run[route.message]

    def there(self, route: Route, values: Values) -> Values:
        """What of a gradient was computed, whose header was not read before."""
        sent = self.header(route)
        self._shapes[route.message].see(sent)
        return [None if entry is None else one for one, entry in zip(values, sent, strict=True)]

    def header(self, route: Route) -> Layout:
        arrived = self._headers_of(route.message)
        self._mesh.wait(arrived.__len__, lambda: str(route), route.source)
        return read(arrived.popleft())

    def _described(self, route: Route) -> Layout | None:
        self._mesh.wait(lambda: self._run(route) is not None, lambda: str(route), route.source)
        run, runs = self._run(route), self._runs[route.source]
        assert run is not None
        found = run.pop(route.message)
        while runs and not runs[0]:
            runs.popleft()
        return found

    def _run(self, route: Route) -> Described | None:
        """The oldest that has such a message, of those described by now."""
        runs = [*self._runs[route.source]]  # to which a thread may add
        return next((run for run in runs if route.message in run), None)

    def _headers_of(self, message: Message) -> deque[bytes]:
        """Where they arrive; in one operation of the table, as any thread may be first."""
        return self._headers.setdefault(message, deque())

    def _on_described(self, source: int, content: bytes) -> None:
        if content != SAME:
            self._heard[source] = _read(content)
        self._runs[source].append({**self._heard[source]})

    def _on_header(self, _: int, content: bytes) -> None:
        self._headers_of(name_in(content)).append(content[NAME.size :])


# as bytes: the layouts that there are, then each message with the place of its own


def _written(run: Described) -> bytes:
    layouts = [*dict.fromkeys(layout for layout in run.values() if layout is not None)]
    contents = map(written, layouts)
    head = LENGTH.pack(len(layouts)) + b"".join(LENGTH.pack(len(one)) + one for one in contents)
    places: dict[Layout | None, int] = {one: place for place, one in enumerate(layouts)}
    places[None] = IN_HEADER
    return head + b"".join(named(one) + PLACE.pack(places[run[one]]) for one in run)


def _read(content: bytes) -> Described:
    (count,) = LENGTH.unpack_from(content)
    layouts: list[Layout] = []
    place = LENGTH.size
    for _ in range(count):
        (length,) = LENGTH.unpack_from(content, place)
        place += LENGTH.size
        layouts.append(read(content[place : place + length]))
        place += length
    return {
        name_in(content[start : start + NAME.size]): _at(layouts, content, start + NAME.size)
        for start in range(place, len(content), NAME.size + PLACE.size)
    }


def _at(layouts: Sequence[Layout], content: bytes, start: int) -> Layout | None:
    (place,) = PLACE.unpack_from(content, start)
    return None if place == IN_HEADER else layouts[place]


# what does not change


def _is_within(found: Layout, known: Layout) -> bool:
    """Whether what is sent is what the other end expects, but for what is not there.

    A gradient that the other end computes for nothing does no harm.
    """
    leaves, structure = _parts(found)
    expected, wanted = _parts(known)
    pairs = zip(leaves, expected, strict=False)
    return (
        len(leaves) == len(expected)
        and all(one in (None, other) for one, other in pairs)
        and (structure == wanted or _wants_less(structure, wanted))
    )


def _parts(layout: Layout) -> tuple[Layout, Structure]:
    """What there is, and how it makes up a value."""
    if layout and isinstance(layout[-1], Structure):
        return layout[:-1], layout[-1]
    return layout, plain(len(layout))


def _wants_less(found: Structure, known: Structure) -> bool:
    """Whether a value is made up as expected, and wants no gradient that was not expected."""
    pairs = zip(known.fixed, found.fixed, strict=False)
    return found.unmarked == known.unmarked and all(one <= other for one, other in pairs)


def _changed(route: Route, known: Layout, found: Layout) -> WeftError:
    return WeftError(
        f"{route} was to be {_shown(known)} and is {_shown(found)}: values change from microbatch"
        f" to microbatch, or with what learns on this rank alone, which process groups and NCCL"
        f" cannot carry; let requires_grad change on all ranks alike, or on one host use"
        f" transport='shared', on its GPUs 'peer'"
    )


def _shown(layout: Layout) -> list[str]:
    return [
        " ".join(map(str, entry)) if isinstance(entry, TensorShape) else str(entry)
        for entry in layout
    ]

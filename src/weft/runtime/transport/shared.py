"""Shared memory between the ranks of one host.

    sender     copies the values into a free block, sends the receiver where they lie
    receiver   copies them out when it waits anyway, and gives credit for the block

Nobody waits for the other: a sender goes on as soon as its copy is made, up to a window of
messages for each receiver. Sums have no window: they are read late in a step, and others may wait
for messages that are sent after them. On GPUs (`peer`) copies are launched, and nobody waits for
those either; they are copied out when they are read, as a host is far ahead of its device.
Threads of a rank copy at the same time, and announce their messages one by one.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import chain
from threading import Lock
from typing import Any, TypeAlias

from weft.ir.kinds import Direction
from weft.runtime.ranks.mesh import Mesh
from weft.runtime.ranks.records import Record
from weft.runtime.ranks.window import ROOM, Windows
from weft.runtime.transport.blocks import Announced, Block, BlockMemory, keep, parcel
from weft.runtime.transport.host import HostMemory
from weft.runtime.transport.message import (
    Message,
    Receive,
    Route,
    Send,
    Shapes,
    Values,
    layout_of,
    name_in,
)

NUMBER = "I"  # of a block, as bytes
LATE = ROOM // 2  # credit that may be owed where values are read late: less than a window has room
KNOWN = 1 << 14  # of what is worked out once for all blocks

Receiver: TypeAlias = tuple[int, bool]  # a rank, and whether it is sums that it reads


class Shared:
    """Messages through blocks of memory that both ends see, announced over the mesh.

    Several threads may send and receive, each its own messages; a sender is then ahead by a window
    and one more message for each further thread at most.
    """

    def __init__(self, mesh: Mesh, windows: Windows, memory: BlockMemory | None = None) -> None:
        self._mesh, self._windows, self._memory = mesh, windows, memory or HostMemory()
        self._free: dict[int, dict[int, list[Block]]] = defaultdict(lambda: defaultdict(list))
        self._used: dict[Receiver, dict[int, Block]] = defaultdict(dict)  # by number
        self._blocks = 0
        self._seen: dict[tuple[int, int], Block] = {}  # blocks of others
        self._known: dict[tuple[int, bytes], tuple[deque[Any], Block, Values]] = {}
        self._arrived: dict[Message, deque[Any]] = {}
        self._owed: dict[int, list[int]] = defaultdict(list)  # blocks that were read, by sender
        self._is_closed = False
        self._announcing, self._crediting = Lock(), Lock()
        mesh.handle(Record.DATA, self._on_data)
        mesh.handle(Record.CREDIT, self._on_credit)

    def sender(self, route: Route, shapes: Shapes) -> Send:
        message, destination = route.message, route.destination
        is_sum = message.direction is Direction.BOTH
        used, free = self._used[destination, is_sum], self._free[destination]
        window = math.inf if is_sum else self._windows[route.source, destination]
        mesh, memory, announcing = self._mesh, self._memory, self._announcing
        last = parcel(message, (), free)

        def send(values: Values) -> None:
            nonlocal last
            layout = layout_of(values)
            if layout != last.layout:
                last = parcel(message, layout, free)
            if len(used) >= window:
                self._make_room(route)
            try:
                block = last.free.pop()
            except IndexError:
                block = self._block(last.room)
            frame, views = last.packed(block)
            memory.fill(block, views, values)
            with announcing:
                if not block.is_given:
                    frame = last.frame(block, memory.give(mesh, destination, block))
                    block.is_given = True
                used[block.number] = block
                mesh.post(destination, frame)

        return send

    def receiver(self, route: Route, shapes: Shapes) -> Receive:
        mesh, source, arrived = self._mesh, route.source, self._queue(route.message)

        def receive() -> Values:
            if not arrived:
                mesh.wait(arrived.__len__, route.__str__, source)
            found: Values = arrived.popleft()
            return found

        def read() -> Values:
            block, views = receive()
            values = self._memory.empty(block, views)
            self._owe(source, block, LATE)
            return values

        return read if self._memory.is_read_late else receive

    def begin(self, incoming: Sequence[Route], outgoing: Sequence[Route]) -> None:
        """Shapes travel with the messages: nothing to prepare."""

    def go_on(self, incoming: Sequence[Route], outgoing: Sequence[Route]) -> None:
        """Nothing to prepare."""

    def abandon(self) -> None:
        """The mesh informs the others; no wait of theirs depends on this transport."""

    def end(self) -> None:
        """Give the credit that is owed; what was sent needs no one to wait for it."""
        for source in [*self._owed]:  # any thread may take what comes meanwhile
            self._give_credit(source)

    def close(self) -> None:
        """Forget all blocks, also where senders and receivers know them."""
        self.end()
        self._is_closed = True  # others may still send
        sources = {source for source, _ in self._seen}
        self._seen.clear()
        self._known.clear()
        for arrived in self._arrived.values():
            arrived.clear()
        given = {
            receiver: [*chain(*map(dict.values, self._unread(receiver)), *rooms.values())]
            for receiver, rooms in self._free.items()
        }
        self._memory.part(self._mesh, sources, given, lambda one: any(self._unread(one)))
        for rooms in self._free.values():
            for blocks in rooms.values():
                blocks.clear()
        for used in self._used.values():
            used.clear()

    def _unread(self, receiver: int) -> list[dict[int, Block]]:
        """The blocks of messages, and those of sums, that are not known to be read."""
        return [self._used[receiver, is_sum] for is_sum in (False, True)]

    def _queue(self, message: Message) -> deque[Any]:
        """Where a message arrives; in one operation of the table, as any thread may be first."""
        return self._arrived.setdefault(message, deque())

    def _block(self, room: int) -> Block:
        with self._announcing:
            self._blocks += 1
            return self._memory.make(self._blocks, room)

    def _make_room(self, route: Route) -> None:
        """Wait for credit; what arrives meanwhile is taken, so that no two ranks lock up."""
        used = self._used[route.destination, False]
        window = self._windows[route.source, route.destination]
        self._mesh.wait(
            lambda: len(used) < window,
            lambda: f"device {route.destination} to read what was sent before {route.action}",
            route.destination,
        )

    def _on_data(self, source: int, content: bytes) -> None:
        if self._is_closed:
            return
        known = self._known.get((source, content))
        arrived, block, views = known if known is not None else self._opened(source, content)
        if self._memory.is_read_late:
            arrived.append((block, views))
            return
        arrived.append(self._memory.empty(block, views))
        self._owe(source, block, self._windows[source, self._mesh.rank] // 2)

    def _owe(self, source: int, block: Block, most: int) -> None:
        """Credit for a block, given with that for others."""
        self._owed[source].append(block.number)
        if len(self._owed[source]) >= most:
            self._give_credit(source)

    def _opened(self, source: int, content: bytes) -> tuple[deque[Any], Block, Values]:
        """Where a message belongs, and where its values lie."""
        announced = Announced(content)
        key = source, announced.number
        if announced.where:
            self._seen[key] = self._memory.open(self._mesh, source, announced)
        block = self._seen[key]
        found = self._queue(name_in(content)), block, block.values(announced.layout)
        if not announced.where:
            keep(self._known, KNOWN, (source, content), found)
        return found

    def _give_credit(self, source: int) -> None:
        with self._crediting:
            numbers = self._owed[source]
            given = array(NUMBER, numbers)
            del numbers[: len(given)]  # others may have been added meanwhile
        if given:
            self._mesh.send(source, Record.CREDIT, given.tobytes())

    def _on_credit(self, destination: int, content: bytes) -> None:
        """Values that are read late are read in any order, so credit names their blocks."""
        messages, sums = self._unread(destination)
        for number in array(NUMBER, content):
            if block := messages.pop(number, None) or sums.pop(number, None):  # else forgotten
                self._free[destination][block.size].append(block)

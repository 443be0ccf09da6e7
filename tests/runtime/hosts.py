"""Hosts of GPUs, each of which launches one thing after the other, and waits for other hosts.

    a reader      until what it reads was sent
    a sum         until what it sums was offered, when the gradients of other devices were closed
    a send        until as many messages of its channel were read as its window asks for
    a transfer    that keeps an order: until all other ends of its group were launched

The last where CUDA loads kernels or frees memory: it ends what was launched before it goes on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.ir.values import Value
from weft.lower import unwired
from weft.runtime.lane.wires import ends_of_groups
from weft.runtime.ranks.window import windows_of
from weft.runtime.transport.shared import LATE

RECEIVES = (Kind.RECV_ACTIVATION, Kind.RECV_GRADIENT)

Way: TypeAlias = tuple[int, int]  # from one device to another


class Hosts:
    """The hosts of a program's devices, by what each launches; closings as ~row."""

    def __init__(
        self,
        program: Program,
        orders: Mapping[int, Sequence[int]],
        groups: Mapping[int, Sequence[int]],
    ) -> None:
        self._program, self._orders = program, orders
        self._closings = {row for order in orders.values() for row in order if row < 0}
        self._launched = set[int]()
        self._ends: dict[int, int] = {}  # the other ends of transfers that keep an order
        self._ways: dict[int, Way] = {}  # of other sends and receives
        self._note_messages()
        self._together = defaultdict[int, set[int]](set)  # what is launched with the last of it
        for row, last in ends_of_groups(program, groups).items():
            self._together[last].add(row)
        windows = windows_of(unwired(program), least=1)
        self._room = {way: window - (LATE - 1) for way, window in windows.items()}
        self._unread = Counter[Way]()

    def stuck(self) -> dict[int, int]:
        """For each device whose host cannot go on, the row that it is at."""
        place, is_moving = dict.fromkeys(self._orders, 0), True
        while is_moving:
            is_moving = False
            for device, order in self._orders.items():
                while place[device] < len(order):
                    known = len(self._launched)
                    is_through = self._passes(order[place[device]])
                    is_moving |= is_through or len(self._launched) > known
                    if not is_through:
                        break
                    place[device] += 1
        return {d: self._orders[d][at] for d, at in place.items() if at < len(self._orders[d])}

    def _passes(self, row: int) -> bool:
        """Whether a host gets beyond this; its group is launched in any case."""
        group = self._together.get(row, set())
        self._launched |= group
        if not {self._ends[one] for one in group} <= self._launched:
            return False
        if not self._awaited(row) - {self._ends.get(row)} <= self._launched:
            return False  # but a receive is posted before its send
        if row in self._ways:
            if self._unread[self._ways[row]] >= self._room[self._ways[row]]:
                return False
            self._unread[self._ways[row]] += 1
        self._unread.subtract(self._ways[one] for one in self._read_by(row) if one in self._ways)
        if row not in self._ends:
            self._launched.add(row)
        return True

    def _awaited(self, row: int) -> set[int]:
        """What has to be launched before, on other devices too."""
        kind, found = self._program.actions.kind, set[int]()
        for producer in self._producers(row):
            if kind[producer] in RECEIVES:
                found.update(self._producers(producer))
            elif kind[row] in (Kind.REDUCE, Kind.UPDATE) and kind[producer] in (Kind.B, Kind.W):
                found.update({~producer} & self._closings)  # offered, or measured, when closed
            else:
                found.add(producer)
        return found

    def _read_by(self, row: int) -> list[int]:
        """The receives that an action reads."""
        return [p for p in self._producers(row) if self._program.actions.kind[p] in RECEIVES]

    def _producers(self, row: int) -> list[int]:
        if row < 0:
            return []
        return [producer for producer, _ in self._program.dependencies.read_by(row)]

    def _note_messages(self) -> None:
        needs, device = self._program.dependencies, self._program.device_of.tolist()
        is_message = needs.value == Value.MESSAGE
        ends = (side[is_message].tolist() for side in (needs.producer, needs.consumer))
        for send, receive in zip(*ends, strict=True):
            if self._program.lanes[self._program.lane_of[send]].is_one_wire:
                self._ends |= {send: receive, receive: send}
            else:
                self._ways |= dict.fromkeys((send, receive), (device[send], device[receive]))

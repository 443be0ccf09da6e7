"""Channel depth: how many messages a channel must hold so that blocking sends never lock up.

A device receives what an action reads from other devices, runs the action, then sends what it
computed, message by message; a send blocks until its channel holds fewer than `depth` messages.

    depth 0   a send ends when the other device reaches the action that reads it
    depth d   a send ends when the message d before it has been received

Reaching an action receives its messages and, since channels are first in, first out, all that
were sent before them. Deadlock under these rules is a matter of order alone, so the in-order
machine answers: a slot becomes a run followed by its sends.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from weft.ir.actions import Index
from weft.ir.earliest import Precedence, earliest
from weft.ir.program import Program
from weft.lower import Messages, messages, unwired
from weft.verify.cycles import cycles


class Stuck(NamedTuple):
    """An action at which a lane cannot proceed: it waits to run, or to send what it computed."""

    action: int
    is_sending: bool


@dataclass(frozen=True, eq=False)
class Blocking:
    """A program whose sends block.

    bounds      lane i holds the nodes bounds[i] : bounds[i + 1]
    run, send   the node of each slot and of each message
    reached     for each message, the node at whose end it is received; -1 where it is at once
    """

    program: Program
    messages: Messages
    bounds: Index = field(repr=False)
    run: Index = field(repr=False)
    send: Index = field(repr=False)
    reached: Index = field(repr=False)

    @classmethod
    def of(cls, program: Program) -> Blocking:
        """The nodes of a program; its sends come after what they send, wires or not."""
        program = unwired(program)
        found = messages(program)
        place = np.concatenate([program.first_of_slot, found.producer])
        order = np.argsort(place, kind="stable")
        bounds = np.searchsorted(place[order], program.bounds)
        node = np.empty_like(order)
        node[order] = np.arange(len(order))
        run, send = np.split(node, [len(program.first_of_slot)])
        reader = _first_reader(found, run[program.slot_of[found.consumer]])
        reached = np.where(np.isin(reader, bounds), -1, reader - 1)
        return cls(program, found, bounds, run, send, reached)

    @cached_property
    def least_depth(self) -> int:
        """The least depth at which every lane reaches its end."""
        upper = 0
        while not self.runs(upper):
            upper = max(1, 2 * upper)
        least = min(upper, upper // 2 + 1)
        return bisect_left(range(upper), True, lo=least, key=self.runs)

    def runs(self, depth: int) -> bool:
        """Whether every lane reaches its end."""
        precedence = self._precedence(depth)
        return bool(np.isfinite(earliest(precedence, np.ones(precedence.slots))).all())

    def stuck(self, depth: int) -> list[Stuck]:
        """Devices that wait for each other at a depth that does not suffice, in a ring."""
        precedence = self._precedence(depth)
        ring = cycles(precedence, earliest(precedence, np.ones(precedence.slots)))[0]
        action_at = np.empty(precedence.slots, np.int64)
        action_at[self.run] = self.program.first_of_slot
        action_at[self.send] = self.messages.producer
        nodes = precedence.consumer[ring]
        return [
            Stuck(int(action), bool(is_sending))
            for action, is_sending in zip(action_at[nodes], np.isin(nodes, self.send), strict=True)
        ]

    def _precedence(self, depth: int) -> Precedence:
        local, arrivals, room = self._local, self._arrivals, self._room(depth)
        consumer, producer = (
            np.concatenate(parts) for parts in zip(local, arrivals, room, strict=True)
        )
        return Precedence(self.bounds, consumer, producer, np.zeros(len(consumer)))

    @cached_property
    def _local(self) -> tuple[Index, Index]:
        """What passes from slot to slot without a message."""
        program, dependencies = self.program, self.program.dependencies
        stays = ~program.crossing & ~program.is_fused
        return (
            self.run[program.slot_of[dependencies.consumer[stays]]],
            self.run[program.slot_of[dependencies.producer[stays]]],
        )

    @cached_property
    def _arrivals(self) -> tuple[Index, Index]:
        """An action runs when the messages it reads have been sent."""
        return self.run[self.program.slot_of[self.messages.consumer]], self.send

    def _room(self, depth: int) -> tuple[Index, Index]:
        """A send ends when the message `depth` before it has been received."""
        every = np.arange(len(self.messages))
        opening = np.repeat(self.messages.bounds[:-1], np.diff(self.messages.bounds))
        later = every[every - opening >= depth]
        waits = self.reached[later - depth] >= 0
        return self.send[later][waits], self.reached[later - depth][waits]


def _first_reader(found: Messages, reader: Index) -> Index:
    """For each message, the first node to read it or one sent after it on its channel."""
    first = reader.copy()
    for start, stop in zip(found.bounds[:-1], found.bounds[1:], strict=True):
        first[start:stop] = np.minimum.accumulate(first[start:stop][::-1])[::-1]
    return first

"""The in-order machine: when every slot of every lane may start at the earliest.

A slot starts when the one before it in its lane has ended and every value it reads has
arrived. The verifier runs this machine to find deadlock, the simulator to find times, the
timeline backwards to find slack.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.ir.actions import Index

Seconds = NDArray[np.float64]

# From this many lanes on, one vector step over all of them beats lane by lane
# (benchmarks/simulator).
WIDE = 12
MOST_COLUMNS = 8


@dataclass(frozen=True, slots=True)
class Precedence:
    """Slots in lanes (lane i holds bounds[i] : bounds[i + 1]) and what each waits for.

    `consumer[i]` waits for `producer[i]` and then for `delay[i]` seconds more.
    """

    bounds: Index
    consumer: Index
    producer: Index
    delay: Seconds

    @property
    def slots(self) -> int:
        return int(self.bounds[-1])

    def reversed(self) -> Precedence:
        """The same machine with time running backwards."""
        last = self.slots - 1
        return Precedence(
            bounds=self.slots - self.bounds[::-1],
            consumer=last - self.producer,
            producer=last - self.consumer,
            delay=self.delay,
        )

    def with_gaps(self, gap: Seconds) -> Precedence:
        """The machine of slots that last longer by a gap, which only their own lane waits for."""
        return replace(self, delay=self.delay - gap[self.producer]) if gap.any() else self

    def with_waits(self, consumer: Index, producer: Index) -> Precedence:
        """The machine in which some slots wait for the end of others besides."""
        every = np.concatenate([self.consumer, consumer])
        order = np.argsort(every, kind="stable")
        return replace(
            self,
            consumer=every[order],
            producer=np.concatenate([self.producer, producer])[order],
            delay=np.concatenate([self.delay, np.zeros(len(consumer))])[order],
        )


class Wait(NamedTuple):
    """For each slot, one producer that it waits for, and how long the value travels.

    The slot after the last ends at 0: who waits for it never waits.
    """

    producer: Index
    delay: Seconds
    has_delay: bool


def earliest(precedence: Precedence, duration: Seconds) -> Seconds:
    """The start of every slot; infinity where a slot waits indefinitely."""
    rows, rank = waits_between(precedence)
    columns = int(rank.max(initial=-1)) + 1
    lanes = int((np.diff(precedence.bounds) > 0).sum())
    if lanes >= WIDE and columns <= MOST_COLUMNS:
        waits = [_column(precedence, rows[rank == column]) for column in range(columns)]
        return all_lanes_at_once(precedence.bounds, waits, duration)
    first = _column(precedence, rows[rank == 0])
    more: dict[int, list[tuple[int, float]]] = {}
    for row in rows[rank > 0].tolist():
        wait = int(precedence.producer[row]), float(precedence.delay[row])
        more.setdefault(int(precedence.consumer[row]), []).append(wait)
    return lane_by_lane(precedence.bounds, first, more, duration)


def waits_between(precedence: Precedence) -> tuple[Index, Index]:
    """The dependencies that the lanes do not imply, and each one's rank at its consumer."""
    lane_of = np.repeat(np.arange(len(precedence.bounds) - 1), np.diff(precedence.bounds))
    source = lane_of[precedence.producer]
    is_implied = (lane_of[precedence.consumer] == source) & (
        precedence.producer < precedence.consumer
    )
    rows = np.flatnonzero(~is_implied)
    if not len(rows) or np.bincount(precedence.consumer[rows]).max() == 1:
        return rows, np.zeros(len(rows), np.int64)
    rows = _last_of_each_lane(precedence, rows, source[rows])
    consumer = precedence.consumer[rows]
    return rows, np.arange(len(rows)) - np.searchsorted(consumer, consumer)


def _column(precedence: Precedence, rows: Index) -> Wait:
    slots = precedence.slots
    producer = np.full(slots + 1, slots, np.int64)
    producer[precedence.consumer[rows]] = precedence.producer[rows]
    delay = np.zeros(slots + 1)
    delay[precedence.consumer[rows]] = precedence.delay[rows]
    return Wait(producer, delay, has_delay=bool(delay.any()))


def _last_of_each_lane(precedence: Precedence, rows: Index, source: Index) -> Index:
    """Of several producers in one lane only the last counts, if their delays are equal."""
    consumer, delay = precedence.consumer[rows], precedence.delay[rows]
    order = np.lexsort((precedence.producer[rows], delay, source, consumer))
    is_repeated = np.all([np.diff(key[order]) == 0 for key in (consumer, source, delay)], axis=0)
    return np.asarray(rows[order][np.append(~is_repeated, True)])


def lane_by_lane(
    bounds: Index, first: Wait, more: dict[int, list[tuple[int, float]]], duration: Seconds
) -> Seconds:
    """Run each lane until it waits, resume it when what it waits for ends."""
    slots = int(bounds[-1])
    never = float("inf")
    end = [never] * slots + [0.0]
    start = [never] * slots
    producer, delay, length = first.producer.tolist(), first.delay.tolist(), duration.tolist()
    position, stop = bounds[:-1].tolist(), bounds[1:].tolist()
    clock = [0.0] * len(position)
    waiting: dict[int, list[int]] = {}
    ready = list(range(len(position)))[::-1]
    while ready:
        lane = ready.pop()
        slot, time, last = position[lane], clock[lane], stop[lane]
        while slot < last:
            wait_for = producer[slot]
            begin = end[wait_for] + delay[slot]
            if begin < time:
                begin = time
            if slot in more and begin < never:
                for wait_for, wait in more[slot]:
                    begin = max(begin, end[wait_for] + wait)
                    if begin == never:
                        break
            if begin == never:
                waiting.setdefault(wait_for, []).append(lane)
                break
            start[slot] = begin
            end[slot] = time = begin + length[slot]
            if slot in waiting:
                ready += waiting.pop(slot)
            slot += 1
        position[lane], clock[lane] = slot, time
    return np.array(start)


def all_lanes_at_once(bounds: Index, columns: list[Wait], duration: Seconds) -> Seconds:
    """One vector step advances every lane whose next slot has all it waits for."""
    slots = int(bounds[-1])
    end = np.full(slots + 1, np.inf)
    end[slots] = 0.0
    start = np.full(slots, np.inf)
    filled = np.diff(bounds) > 0
    position, stop = bounds[:-1][filled], bounds[1:][filled]
    clock = np.zeros(len(position))
    steps = 0  # no lane can end before this many more
    while len(position):
        begin = clock
        for column in columns:
            arrival = end[column.producer[position]]
            if column.has_delay:
                arrival += column.delay[position]
            begin = np.maximum(begin, arrival)
        moving = (begin < np.inf).nonzero()[0]
        if not len(moving):
            break
        slot, first = position[moving], begin[moving]
        last = first + duration[slot]
        start[slot] = first
        end[slot] = clock[moving] = last
        position[moving] = slot + 1
        steps -= 1
        if steps <= 0:
            is_open = position < stop
            position, stop, clock = position[is_open], stop[is_open], clock[is_open]
            steps = int((stop - position).min(initial=slots))
    return start

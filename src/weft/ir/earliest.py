"""The in-order machine: when every slot of every lane may start at the earliest.

A slot starts when the one before it in its lane has ended and every value it reads has
arrived. The verifier runs this machine to find deadlock, the simulator to find times, the
timeline backwards to find slack.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.ir.actions import Index

Seconds = NDArray[np.float64]

# From so many lanes on, one vector step over all of them beats lane by lane
# (benchmarks/simulator).
WIDE = 12


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


class Wait(NamedTuple):
    """For each slot, one producer that it waits for, and how long the value travels."""

    producer: Index
    delay: Seconds
    has_delay: bool


def earliest(precedence: Precedence, duration: Seconds) -> Seconds:
    """The start of every slot; infinity where a slot waits for ever."""
    columns = _columns(precedence)
    lanes = int((np.diff(precedence.bounds) > 0).sum())
    run = _all_lanes_at_once if lanes >= WIDE else _lane_by_lane
    return run(precedence.bounds, columns, duration)


def _columns(precedence: Precedence) -> list[Wait]:
    """Each column has one producer for each slot, or the slot after the last: it never waits."""
    slots = precedence.slots
    lane_of = np.repeat(np.arange(len(precedence.bounds) - 1), np.diff(precedence.bounds))
    source = lane_of[precedence.producer]
    is_implied = (lane_of[precedence.consumer] == source) & (
        precedence.producer <= precedence.consumer
    )
    kept = np.flatnonzero(~is_implied)
    consumer = precedence.consumer[kept]
    if len(consumer) and np.bincount(consumer).max() > 1:
        kept = _last_of_each_lane(precedence, kept, source[kept])
        consumer = precedence.consumer[kept]
        rank = np.arange(len(consumer)) - np.searchsorted(consumer, consumer)
    else:
        rank = np.zeros(len(consumer), np.int64)
    columns = []
    for column in range(int(rank.max(initial=-1)) + 1):
        rows = kept[rank == column]
        producer = np.full(slots + 1, slots, np.int64)
        producer[precedence.consumer[rows]] = precedence.producer[rows]
        delay = np.zeros(slots + 1)
        delay[precedence.consumer[rows]] = precedence.delay[rows]
        columns.append(Wait(producer, delay, has_delay=bool(delay.any())))
    return columns


def _last_of_each_lane(precedence: Precedence, rows: Index, source: Index) -> Index:
    """Of several producers in one lane only the last counts, if their delays are equal."""
    consumer, delay = precedence.consumer[rows], precedence.delay[rows]
    order = np.lexsort((precedence.producer[rows], delay, source, consumer))
    is_repeated = np.all([np.diff(key[order]) == 0 for key in (consumer, source, delay)], axis=0)
    return np.asarray(rows[order][np.append(~is_repeated, True)])


def _lane_by_lane(bounds: Index, columns: list[Wait], duration: Seconds) -> Seconds:
    """Run each lane until it waits, resume it when what it waits for ends."""
    slots = int(bounds[-1])
    never = float("inf")
    end = [never] * slots + [0.0]
    start = [never] * slots
    waits = [(column.producer.tolist(), column.delay.tolist()) for column in columns]
    length = duration.tolist()
    position, stop = bounds[:-1].tolist(), bounds[1:].tolist()
    clock = [0.0] * len(position)
    waiting: dict[int, list[int]] = {}
    ready = list(range(len(position)))[::-1]
    while ready:
        lane = ready.pop()
        slot, time, last = position[lane], clock[lane], stop[lane]
        while slot < last:
            begin = time
            for producer, delay in waits:
                arrival = end[producer[slot]] + delay[slot]
                if arrival > begin:
                    begin = arrival
                    if arrival == never:
                        waiting.setdefault(producer[slot], []).append(lane)
                        break
            if begin == never:
                break
            start[slot] = begin
            end[slot] = time = begin + length[slot]
            if slot in waiting:
                ready += waiting.pop(slot)
            slot += 1
        position[lane], clock[lane] = slot, time
    return np.array(start)


def _all_lanes_at_once(bounds: Index, columns: list[Wait], duration: Seconds) -> Seconds:
    """One vector step advances every lane whose next slot has all it waits for."""
    slots = int(bounds[-1])
    end = np.full(slots + 1, np.inf)
    end[slots] = 0.0
    start = np.full(slots, np.inf)
    filled = np.diff(bounds) > 0
    position, stop = bounds[:-1][filled], bounds[1:][filled]
    clock = np.zeros(len(position))
    steps = 0  # no lane can end before so many more
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

"""The in-order machine: when every slot of every lane may start at the earliest.

A slot starts when the one before it in its lane has ended and every value it reads has
arrived. The verifier runs this machine to find deadlock, the simulator to find times, the
timeline backwards to find slack.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.ir.actions import Index

Seconds = NDArray[np.float64]

# Vector steps over all lanes cost about as much as 20 scalar ones (benchmarks/simulator).
WIDE = 20


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


def earliest(precedence: Precedence, duration: Seconds) -> Seconds:
    """The start of every slot; infinity where a slot waits for ever."""
    columns = _columns(precedence)
    lanes = int((np.diff(precedence.bounds) > 0).sum())
    run = _all_lanes_at_once if lanes >= WIDE else _lane_by_lane
    return run(precedence.bounds, columns, duration)


def _columns(precedence: Precedence) -> list[tuple[Index, Seconds]]:
    """Per column one producer for each slot, or the slot after the last, which never waits."""
    slots = precedence.slots
    lane_of = np.repeat(np.arange(len(precedence.bounds) - 1), np.diff(precedence.bounds))
    consumer, producer, delay = precedence.consumer, precedence.producer, precedence.delay
    source = lane_of[producer]
    implied = (lane_of[consumer] == source) & (producer <= consumer)
    consumer, producer, delay, source = (
        array[~implied] for array in (consumer, producer, delay, source)
    )
    if len(consumer) and np.bincount(consumer).max() > 1:
        # Of several producers in one lane only the last one counts, if their delays are equal.
        order = np.lexsort((producer, delay, source, consumer))
        consumer, producer, delay, source = (
            array[order] for array in (consumer, producer, delay, source)
        )
        repeats = (np.diff(consumer) == 0) & (np.diff(source) == 0) & (np.diff(delay) == 0)
        last = np.append(~repeats, True)
        consumer, producer, delay = consumer[last], producer[last], delay[last]
        rank = np.arange(len(consumer)) - np.searchsorted(consumer, consumer)
    else:
        rank = np.zeros(len(consumer), np.int64)
    columns = []
    for column in range(int(rank.max(initial=-1)) + 1):
        here = rank == column
        wait_for = np.full(slots + 1, slots, np.int64)
        wait_for[consumer[here]] = producer[here]
        wait = np.zeros(slots + 1)
        wait[consumer[here]] = delay[here]
        columns.append((wait_for, wait))
    return columns


def _lane_by_lane(
    bounds: Index, columns: list[tuple[Index, Seconds]], duration: Seconds
) -> Seconds:
    """Run each lane until it waits, resume it when what it waits for ends."""
    slots = int(bounds[-1])
    never = float("inf")
    end = [never] * slots + [0.0]
    start = [never] * slots
    waits = [(wait_for.tolist(), wait.tolist()) for wait_for, wait in columns]
    length = duration.tolist()
    position, stop = bounds[:-1].tolist(), bounds[1:].tolist()
    clock = [0.0] * len(position)
    waiting: dict[int, list[int]] = {}
    ready = list(range(len(position)))[::-1]
    while ready:
        lane = ready.pop()
        slot, time, last = position[lane], clock[lane], stop[lane]
        while slot < last:
            for wait_for, wait in waits:
                arrival = end[wait_for[slot]] + wait[slot]
                if arrival > time:
                    if arrival == never:
                        waiting.setdefault(wait_for[slot], []).append(lane)
                        break
                    time = arrival
            else:
                start[slot] = time
                time += length[slot]
                end[slot] = time
                if slot in waiting:
                    ready += waiting.pop(slot)
                slot += 1
                clock[lane] = time
                continue
            break
        position[lane] = slot
    return np.array(start)


def _all_lanes_at_once(
    bounds: Index, columns: list[tuple[Index, Seconds]], duration: Seconds
) -> Seconds:
    """One vector step advances every lane whose next slot has all it waits for."""
    slots = int(bounds[-1])
    end = np.full(slots + 1, np.inf)
    end[slots] = 0.0
    start = np.full(slots, np.inf)
    filled = np.diff(bounds) > 0
    position, stop = bounds[:-1][filled], bounds[1:][filled]
    clock = np.zeros(len(position))
    while len(position):
        begin = clock
        for wait_for, wait in columns:
            begin = np.maximum(begin, end[wait_for[position]] + wait[position])
        moving = np.flatnonzero(begin < np.inf)
        if not len(moving):
            break
        slot = position[moving]
        first = begin[moving]
        last = first + duration[slot]
        start[slot] = first
        end[slot] = last
        clock[moving] = last
        position[moving] = slot + 1
        open_lanes = position < stop
        if not open_lanes.all():
            position, stop, clock = position[open_lanes], stop[open_lanes], clock[open_lanes]
    return start

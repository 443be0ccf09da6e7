"""Squeeze: every action moved to the first gap that it may have, in both directions of time.

A pass takes actions in the order of their starts and puts each where it begins soonest among
those that have been put before it. None begins later than it did, so that no pass makes a
schedule longer. The same with time running backwards makes room at the other end (project
schedulers call it justification).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from heapq import heapify, heappop, heappush

from weft.plan.synthesis.constraints import Constraints, Starts

MOST_ROUNDS = 12
TOLERANCE = 1e-9  # of the longest action: gaps that rounding has narrowed


def squeezed(tied: Constraints, starts: Starts, rounds: int = MOST_ROUNDS) -> Starts:
    """The same actions, ending no later and as soon as moving them can achieve."""
    mirror = tied.mirrored()
    best, shortest = starts, float("inf")
    for _ in range(rounds):
        starts = earlier(tied, _mirrored(tied, earlier(mirror, _mirrored(tied, starts))))
        length = tied.length(starts)
        if length >= shortest * (1 - TOLERANCE):
            break
        best, shortest = starts, length
    return best if shortest <= tied.length(best) else starts


def _mirrored(tied: Constraints, starts: Starts) -> Starts:
    last = tied.length(starts)
    return [last - start - time for start, time in zip(starts, tied.duration, strict=True)]


def earlier(tied: Constraints, starts: Starts) -> Starts:
    """Every action as early as it may be, in the order of these starts."""
    duration, device_of, holds, reads = tied.duration, tied.device, tied.holds, tied.reads
    lanes = [_Busy(gap) for gap in _useless(tied)]
    rooms = [_Room(cap) for cap in tied.caps]
    narrow = TOLERANCE * max(duration)
    new = [0.0] * len(duration)
    ends = [0.0] * len(duration)
    count = tied.microbatches
    latest = [0.0] * (len(duration) // count)  # start in each row (kind and stage)
    for action in in_order(tied, starts):
        row = action // count
        time = latest[row]  # nothing is gained if microbatches change places
        for other, delay in reads[action]:
            arrival = ends[other] + delay
            if arrival > time:
                time = arrival
        device, amount, length = device_of[action], holds[action], duration[action]
        if amount > 0:
            time = rooms[device].first(time, amount)
        time = lanes[device].take(time, length, narrow)
        new[action] = latest[row] = time
        ends[action] = time + length
        if amount:
            rooms[device].change(time if amount > 0 else time + length, amount)
    return new


def _useless(tied: Constraints) -> list[float]:
    """For each device, the longest gap that is too short for all its actions."""
    shortest = [float("inf")] * len(tied.caps)
    for row in range(0, len(tied), tied.microbatches):
        device = tied.device[row]
        shortest[device] = min(shortest[device], tied.duration[row])
    return [time * (1 - 2 * TOLERANCE) for time in shortest]


def in_order(tied: Constraints, starts: Starts) -> list[int]:
    """The actions by their starts; of those that start together, the first of the chain first."""
    duration, rank = tied.duration, tied.rank
    order = sorted(range(len(starts)), key=lambda action: (starts[action], rank[action]))
    narrow = TOLERANCE * max(duration)
    if not _has_instants(tied, narrow):
        return order
    return [n for moment in _moments(starts, order, narrow) for n in _in_turn(tied, moment)]


def _has_instants(tied: Constraints, narrow: float) -> bool:
    """Whether an action takes no time, or another may begin at the start of what it reads."""
    duration, count = tied.duration, tied.microbatches
    waits = [duration[other] + delay for reads in tied.reads[::count] for other, delay in reads]
    return min(*duration[::count], *waits) <= narrow


def _moments(starts: Starts, order: list[int], narrow: float) -> list[list[int]]:
    """Those that start together, but for rounding: what takes no time would change places by it."""
    moments: list[list[int]] = []
    last = -float("inf")
    for action in order:
        if starts[action] - last > narrow:
            moments.append([])
        moments[-1].append(action)
        last = starts[action]
    return moments


def _in_turn(tied: Constraints, moment: list[int]) -> list[int]:
    """What reads nothing of the rest comes first; of that, what gives room back, then instants."""
    if len(moment) == 1:
        return moment

    def key(action: int) -> tuple[bool, float, int, int]:
        return tied.duration[action] > 0, tied.holds[action], -tied.rank[action], action

    unmet = dict.fromkeys(moment, 0)
    for action in moment:
        unmet[action] = sum(other in unmet for other, _ in tied.reads[action])
    ready = [(key(action), action) for action in moment if not unmet[action]]
    heapify(ready)
    order = []
    while ready:
        _, action = heappop(ready)
        order.append(action)
        for reader, _ in tied.readers[action]:
            if reader in unmet:
                unmet[reader] -= 1
                if not unmet[reader]:
                    heappush(ready, (key(reader), reader))
    return order


class _Busy:
    """When a device is busy; stretches are one where nothing fits between them."""

    __slots__ = ("ends", "gap", "starts")

    def __init__(self, gap: float) -> None:
        self.gap = gap
        self.starts: list[float] = []
        self.ends: list[float] = []

    def take(self, time: float, length: float, narrow: float) -> float:
        """The start of the first gap from a time on that is long enough; it is busy then."""
        starts, ends = self.starts, self.ends
        index = bisect_right(ends, time)  # the first stretch that ends after it
        count = len(starts)
        while index < count and starts[index] - time < length - narrow:
            if ends[index] > time:
                time = ends[index]
            index += 1
        end = time + length
        joins_left = index > 0 and ends[index - 1] >= time - self.gap
        joins_right = index < count and starts[index] <= end + self.gap
        if joins_left and joins_right:
            ends[index - 1 : index + 1] = [ends[index]]
            del starts[index]
        elif joins_left:
            ends[index - 1] = end
        elif joins_right:
            starts[index] = time
        else:
            starts.insert(index, time)
            ends.insert(index, end)
        return time


class _Room:
    """What a device holds over time, of what has been put so far."""

    __slots__ = ("cap", "changes", "level")

    def __init__(self, cap: float) -> None:
        self.cap = cap
        self.changes: list[tuple[float, float]] = []  # at one time, what is given back comes first
        self.level = 0.0

    def first(self, time: float, amount: float) -> float:
        """From when on there is room for an amount, from this time on."""
        changes, level, most = self.changes, self.level, self.cap - amount
        index = len(changes) - 1
        while index >= 0 and changes[index][0] > time:
            before = level - changes[index][1]
            if before > most:
                return changes[index][0]
            level = before
            index -= 1
        return time

    def change(self, time: float, amount: float) -> None:
        insort(self.changes, (time, amount))
        self.level += amount

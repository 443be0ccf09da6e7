"""Windows: how many messages may be under way from one device to another.

As many as the program itself keeps there, by its simulation with unit costs, and a few more: a
sender then never waits for a receiver that is at work, and memory does not grow beyond that.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

import numpy as np

from weft.ir.earliest import Seconds
from weft.ir.program import Program
from weft.simulate import simulate

ROOM = 4

Windows: TypeAlias = defaultdict[tuple[int, int], int]  # by source and destination


def windows_of(program: Program, *, least: int) -> Windows:
    """For each pair of devices that exchange messages, how many may be under way."""
    timeline, needs = simulate(program), program.dependencies
    crossing = program.crossing
    producer, consumer = needs.producer[crossing], needs.consumer[crossing]
    sent, read = timeline.end[producer], timeline.start[consumer]
    ends = np.stack([program.device_of[producer], program.device_of[consumer]], axis=1)
    found = {}
    for pair in np.unique(ends, axis=0):
        mine = (ends == pair).all(axis=1)
        most = max(least, _most(sent[mine], read[mine]))
        found[int(pair[0]), int(pair[1])] = most + ROOM
    return defaultdict(lambda: ROOM, found)


def _most(sent: Seconds, read: Seconds) -> int:
    """The most messages that are sent and not read at any time."""
    times = np.concatenate([sent, read])
    change = np.concatenate([np.ones(len(sent), int), -np.ones(len(read), int)])
    order = np.lexsort((-change, times))  # sent before read, where both are at once
    return int(np.cumsum(change[order]).max())

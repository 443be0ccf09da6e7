"""Cycles: lanes that wait for each other indefinitely."""

from __future__ import annotations

import numpy as np

from weft.ir.earliest import Precedence, Seconds


def cycles(precedence: Precedence, start: Seconds) -> list[list[int]]:
    """Every ring of lanes that wait for one another, as the waits that close it.

    A wait is an index into the precedence's `consumer` and `producer`; the consumer of one wait
    keeps the producer of the wait before it from starting.
    """
    wait_of = _waits(precedence, start)
    lane_of = np.repeat(np.arange(len(precedence.bounds) - 1), np.diff(precedence.bounds))
    rings: list[list[int]] = []
    seen: set[int] = set()
    for lane in wait_of:
        path: list[int] = []
        while lane not in seen:
            seen.add(lane)
            path.append(lane)
            lane = int(lane_of[precedence.producer[wait_of[lane]]])
        if lane in path:
            rings.append([wait_of[member] for member in path[path.index(lane) :]])
    return rings


def _waits(precedence: Precedence, start: Seconds) -> dict[int, int]:
    """For each lane that cannot proceed, one thing that it waits for and never gets."""
    is_stuck = ~np.isfinite(start)
    stuck_before = np.concatenate([[0], np.cumsum(is_stuck)])[precedence.bounds]
    stuck = np.diff(stuck_before)
    lanes = np.flatnonzero(stuck)
    first = precedence.bounds[lanes + 1] - stuck[lanes]
    rows = np.flatnonzero(np.isin(precedence.consumer, first) & is_stuck[precedence.producer])
    rows = rows[precedence.consumer[rows] != precedence.producer[rows]]
    wait_at = dict(zip(precedence.consumer[rows].tolist(), rows.tolist(), strict=True))
    return {
        lane: wait_at[slot]
        for lane, slot in zip(lanes.tolist(), first.tolist(), strict=True)
        if slot in wait_at
    }

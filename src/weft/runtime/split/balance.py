"""Balance: consecutive calls, cut into parts of even weight where little has to travel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

SLACK = 1.05  # by how much the largest part may exceed the smallest possible one
TRAVEL = 0.1  # how much the bytes that cross count, beside how uneven the parts are


def starts_of(weights: Sequence[float], crossing: Sequence[float], parts: int) -> list[int] | None:
    """Where each part begins; None if there are not as many places to cut.

    weights   of calls that follow each other
    crossing  bytes that cross a cut in front of each; infinite where none can be

    The largest part is as small as can be (but for SLACK). Then parts are as even as can be, and
    cut where few bytes cross.
    """
    count = len(weights)
    places = [index for index in range(1, count) if np.isfinite(crossing[index])]
    if parts < 1 or parts > len(places) + 1:
        return None
    ends = np.array([0, *places, count])
    total = np.concatenate([[0.0], np.cumsum(np.asarray(weights, dtype=float))])[ends]
    if not total[-1]:
        total = ends.astype(float)  # nothing has a weight: calls count alike
    travel = np.array([0.0, *(crossing[place] for place in places), 0.0])
    travel = TRAVEL * travel / max(travel.max(), 1.0)
    limit = SLACK * _smallest(total, parts)
    chosen = _most_even(total / total[-1] * parts, travel, limit / total[-1] * parts, parts)
    return [int(ends[place]) for place in chosen]


def _smallest(total: Array, parts: int) -> float:
    """The weight of the largest part, at best."""
    largest = total.copy()  # at best, of everything before each place, in one part
    for _ in range(parts - 1):
        rows = [np.maximum(largest[:end], total[end] - total[:end]) for end in range(1, len(total))]
        largest = np.array([np.inf, *(row.min() for row in rows)])
    return float(largest[-1])


def _most_even(total: Array, travel: Array, limit: float, parts: int) -> list[int]:
    """The places where parts begin, none of which is larger than the limit."""
    best = np.full(len(total), np.inf)  # of everything before each place
    best[0] = 0.0
    before: list[list[int]] = []
    for _ in range(parts):
        known, best, begins = best, np.full(len(total), np.inf), [0] * len(total)
        for end in range(1, len(total)):
            size = total[end] - total[:end]
            ways = known[:end] + size**2 + travel[:end]
            ways[size > limit * (1 + 1e-9)] = np.inf
            # Of equal ways the last: what weighs nothing goes with what it reads.
            begins[end] = end - 1 - int(ways[::-1].argmin())
            best[end] = ways[begins[end]]
        before.append(begins)
    chosen = [len(total) - 1]
    for begins in reversed(before):
        chosen.append(begins[chosen[-1]])
    return chosen[:0:-1]

"""The in-order machine run many times at once, each time with other durations.

All slots that wait for equally many others in a row, a level, start in one vector step. That is
slower than lane by lane for one run, and much faster for a hundred.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.ir.actions import Index
from weft.ir.earliest import Precedence, Seconds, earliest, waits_between


def earliest_of_each(precedence: Precedence, durations: Seconds) -> Seconds:
    """The start of every slot in every run, by `durations[slot, run]`; all of them must end."""
    slots, level = precedence.slots, _levels(precedence)
    previous = np.arange(-1, slots - 1)
    previous[precedence.bounds[:-1][np.diff(precedence.bounds) > 0]] = slots  # which ends at 0
    start, end = np.zeros_like(durations), np.zeros((slots + 1, durations.shape[1]))
    by_level = np.argsort(level, kind="stable")
    rows, _ = waits_between(precedence)
    rows = rows[np.lexsort((precedence.consumer[rows], level[precedence.consumer[rows]]))]
    last = int(level.max(initial=-1))
    slot_bounds = np.searchsorted(level[by_level], np.arange(last + 2))
    row_bounds = np.searchsorted(level[precedence.consumer[rows]], np.arange(last + 2))
    for index in range(last + 1):
        here = by_level[slot_bounds[index] : slot_bounds[index + 1]]
        start[here] = end[previous[here]]
        waits = rows[row_bounds[index] : row_bounds[index + 1]]
        if len(waits):
            arrival = end[precedence.producer[waits]] + precedence.delay[waits, None]
            consumer, first = np.unique(precedence.consumer[waits], return_index=True)
            latest = np.maximum.reduceat(arrival, first, axis=0)
            start[consumer] = np.maximum(start[consumer], latest)
        end[here] = start[here] + durations[here]
    return start


def _levels(precedence: Precedence) -> Index:
    """How many slots each of them waits for in a row: its start if all last one second."""
    undelayed = replace(precedence, delay=np.zeros(len(precedence.delay)))
    return earliest(undelayed, np.ones(precedence.slots)).astype(np.int64)

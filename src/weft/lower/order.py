"""Launch order: all actions of all lanes in one line, as a host could start them.

compute   F0   F1   B0                F0 S0 F1 R0 B0
wire         S0   R0           ->     every lane in its order, no action before what it reads
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heapify, heappop, heappush

import numpy as np

from weft.errors import ProgramError
from weft.ir.actions import Index
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.ir.tables import Groups
from weft.timeline import Timeline


def launch_order(timeline: Timeline) -> Index:
    """All rows of the timeline's program, by start as far as lanes and what is read allow.

    Of those that start together, one that another reads comes first; else the lower row.
    """
    before, after = arcs(timeline.program)
    by_start = np.lexsort((np.arange(len(timeline.start)), timeline.start))
    place = np.empty_like(by_start)
    place[by_start] = np.arange(len(by_start))
    if (place[before] < place[after]).all():
        return by_start
    return extension(timeline.program, place, before, after)


def arcs(program: Program) -> tuple[Index, Index]:
    """Rows, and rows that have to come after them: the next of their lane, and who reads them.

    And updates that wait for a norm, after the sums of it on their device: whoever waited before it
    took part in a sum would wait for itself.
    """
    is_first = np.isin(np.arange(len(program)), program.bounds[:-1])
    next_in_lane = np.flatnonzero(~is_first)
    dependencies, is_apart = program.dependencies, ~program.is_fused
    summed, waiting = sums_of_norms(program)
    before = np.concatenate([next_in_lane - 1, dependencies.producer[is_apart], summed])
    after = np.concatenate([next_in_lane, dependencies.consumer[is_apart], waiting])
    return before, after


def sums_of_norms(program: Program) -> tuple[Index, Index]:
    """Sums, and the updates of their device that wait for a norm of the same gradients.

    A tied weight counts in the norm of its home.
    """
    actions = program.actions
    norm_of = np.full(program.stages, -1)
    for index, group in enumerate(program.norms):
        norm_of[list(group)] = index
    homes = np.array([home for home, *_ in program.ties] or [0])
    is_tied = np.isin(actions.kind, (Kind.REDUCE, Kind.UPDATE)) & (actions.edge >= 0)
    counted = np.where(is_tied, homes[np.where(is_tied, actions.edge, 0)], actions.stage)
    norm, versions = norm_of[counted], int(actions.version.max(initial=0)) + 2
    holder = program.device_of.astype(np.int64) * (len(program.norms) + 1) + norm + 1
    key = holder * versions + actions.version + 1
    sums, updates = (
        np.flatnonzero((actions.kind == kind) & (norm >= 0)) for kind in (Kind.REDUCE, Kind.UPDATE)
    )
    return Groups(sums, key[sums]).join(updates, key[updates])[::-1]


def extension(program: Program, place: Index, before: Index, after: Index) -> Index:
    """Of the rows that nothing still has to come before, the first by place, one after another."""
    waits = np.bincount(after, minlength=len(place)).tolist()
    followers: dict[int, list[int]] = defaultdict(list)
    for row, follower in zip(before.tolist(), after.tolist(), strict=True):
        followers[row].append(follower)
    place_of, order = place.tolist(), []
    ready = [(place_of[row], row) for row, count in enumerate(waits) if not count]
    heapify(ready)
    while ready:
        _, row = heappop(ready)
        order.append(row)
        for follower in followers[row]:
            waits[follower] -= 1
            if not waits[follower]:
                heappush(ready, (place_of[follower], follower))
    if len(order) < len(place):
        raise ProgramError([f"{program.name} never ends: `verify` names the action that waits"])
    return np.array(order, np.int64)

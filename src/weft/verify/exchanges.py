"""Exchanges: all pipes of an expert group exchange their tokens in one order.

    device 0   D0 D1 C0 C1      device 0 waits at D1 for device 2, which
    device 2   D0 C0 D1 C1      waits at C0 for device 0

An exchange is over when all have come to it, so whoever comes to another one first waits for those
that wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.ir.actions import Index
from weft.ir.expert_groups import expert_index, is_exchanging, meeting_keys
from weft.verify.context import Breach, Context


def exchanged_alike(context: Context) -> Iterator[Breach]:
    """Every other pipe of a group has its exchanges in the order of the first one."""
    program = context.program
    groups, actions = program.expert_groups, program.actions
    if not groups:
        return
    rows = np.flatnonzero(is_exchanging(actions))
    keys = meeting_keys(actions, rows, groups, program.pipe_of)
    index_of = np.array([expert_index(groups, pipe) for pipe in range(sum(map(len, groups)))])
    index = index_of[actions.pipe[rows]]
    for other in range(1, len(groups[0])):
        _, first, second = np.intersect1d(
            keys[index == 0], keys[index == other], assume_unique=True, return_indices=True
        )
        yield from _turned(context, rows[index == 0][first], rows[index == other][second])


def _turned(context: Context, first: Index, second: Index) -> Iterator[Breach]:
    """The first exchange of each lane that another pipe has before the one in front of it."""
    program = context.program
    order = np.argsort(first)
    first, second = first[order], second[order]
    lanes = program.lane_of[first]
    is_turned = (lanes[1:] == lanes[:-1]) & (second[1:] < second[:-1])
    _, found = np.unique(lanes[1:][is_turned], return_index=True)
    for place in np.flatnonzero(is_turned)[found].tolist():
        yield _breach(
            context, first[place : place + 2].tolist(), second[place : place + 2].tolist()
        )


def _breach(context: Context, first: list[int], second: list[int]) -> Breach:
    devices = context.program.device_of
    here, there = int(devices[first[0]]), int(devices[second[0]])
    before, after = map(context.token, first)
    late, early = map(context.token, second)
    return context.at(
        second[1],
        f"device {here} exchanges tokens at {before} and then at {after}, device {there} at {early}"
        f" and then at {late}, so that each waits for the other. On device {there}, move {late} in"
        f" front of {early}.",
    )

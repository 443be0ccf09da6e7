"""Room: how much of what leaves for the host may still be on the device when more is computed.

    compute   F0 F1 F2 ....... F3 ....... B0     F3 waits until the first has left
    offload      0     1     2     3             a copy takes longer than a forward

Forwards of the warm-up could run one after the other, faster than their state leaves: all of it
would be on the device at once. The backward that they wait for comes no sooner for that. So a
forward waits for room, where that costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.cost import Cost
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.lower import offloads
from weft.runtime.device.link import slowed
from weft.simulate import simulate
from weft.timeline import Timeline

PRICE = 0.005  # of a step: what waiting for room may cost
SLOWER = 1.1  # copies may take longer than they did when nothing else ran


def with_room(program: Program, cost: Cost | None) -> Timeline:
    """The timeline by which a program is launched: with as little on its way as costs no time."""
    free = simulate(program, cost)
    if cost is None or program.period is not None or not offloads(program):
        return free
    cost = slowed(cost, SLOWER)
    free = simulate(program, cost)
    found, least, most = free, 1, int((program.actions.kind == Kind.OFFLOAD).sum())
    while least < most:
        room = (least + most) // 2
        timeline = simulate(program, cost, waits=[*_waits(program, room)])
        if timeline.makespan <= (1 + PRICE) * free.makespan:
            found, most = timeline, room
        else:
            least = room + 1
    return found


def _waits(program: Program, room: int) -> Iterator[tuple[int, int]]:
    """Forwards, and the copy that each waits for, so that no more than this many are on the way."""
    forward_of = _forwards(program)
    for index in range(len(program.lanes)):
        rows = range(int(program.bounds[index]), int(program.bounds[index + 1]))
        copies = [row for row in rows if row in forward_of]
        for copy, later in zip(copies, copies[room:], strict=False):
            yield forward_of[later], copy


def _forwards(program: Program) -> dict[int, int]:
    """For each copy to the host, the first forward whose state it moves."""
    needs, kind = program.dependencies, program.actions.kind
    is_state = (kind[needs.consumer] == Kind.OFFLOAD) & (kind[needs.producer] == Kind.F)
    found: dict[int, int] = {}
    rows = np.flatnonzero(is_state)
    for copy, forward in zip(
        needs.consumer[rows].tolist(), needs.producer[rows].tolist(), strict=True
    ):
        found[copy] = min(forward, found.get(copy, forward))
    return found

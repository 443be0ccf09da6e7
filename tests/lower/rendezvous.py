"""A machine by brute force: a transfer takes place when both of its wires have come to it.

Each lane runs in order. A wire posts its transfers group by group: a group is open once all that it
sends is computed, a transfer is done once the groups of both its ends are open, and a group is over
once all of its transfers are done. Shares no code with `lower.meetings`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from hypothesis import strategies as st

from weft.cost import Cost, Link, Share
from weft.ir.actions import Action
from weft.ir.kinds import EDGE_END, Stream
from weft.ir.program import Program
from weft.ir.values import Value
from weft.lower import Groups


class Machine:
    """A program under way."""

    def __init__(
        self,
        program: Program,
        groups: Groups | None = None,
        after: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self.program, self.done = program, np.zeros(len(program), np.bool_)
        self.may_run = np.ones(len(program), np.bool_)
        self._reads: dict[int, list[int]] = defaultdict(list)
        self._other_end: dict[int, int] = {}
        needs = program.dependencies
        for consumer, producer, value in zip(
            needs.consumer.tolist(), needs.producer.tolist(), needs.value.tolist(), strict=True
        ):
            if self._is_on_wire(consumer) and value == Value.MESSAGE:
                self._other_end |= {consumer: producer, producer: consumer}
            else:
                self._reads[consumer].append(producer)
        for row, before in after.items():
            self._reads[row].append(before)
        self._queues = [self._queue(index, groups) for index in range(len(program.lanes))]
        self._arrived: set[int] = set()

    def _is_on_wire(self, row: int) -> bool:
        return bool(self.program.lanes[int(self.program.lane_of[row])].is_one_wire)

    def _queue(self, index: int, groups: Groups | None) -> list[list[int]]:
        """What a lane does one after the other, the last first."""
        program, lane = self.program, self.program.lanes[index]
        rows = list(range(int(program.bounds[index]), int(program.bounds[index + 1])))
        if groups is not None and lane.is_one_wire:
            cuts = np.cumsum(groups[lane.device]).tolist()
            found = [rows[a:b] for a, b in zip([0, *cuts], cuts, strict=False)]
        else:
            found = [[row] for row in rows]
        return found[::-1]

    def _is_open(self, rows: list[int]) -> bool:
        return all(
            self.may_run[row] and all(self.done[other] for other in self._reads[row])
            for row in rows
        )

    def _advance(self, queue: list[list[int]], open_: set[int]) -> bool:
        rows = queue[-1]
        if not self._is_open(rows):
            return False
        if self._is_on_wire(rows[0]):
            self._arrived |= {row for row in rows if self._other_end[row] in open_}
            if not set(rows) <= self._arrived:
                return False
        self.done[rows] = True
        queue.pop()
        return True

    def run(self) -> bool:
        """Run as far as anything can; whether all of it ran."""
        has_moved = True
        while has_moved:
            open_ = {r for q in self._queues if q and self._is_open(q[-1]) for r in q[-1]}
            open_ |= self._arrived
            waiting = [queue for queue in self._queues if queue]
            has_moved = sum(self._advance(queue, open_) for queue in waiting) > 0
        return bool(self.done.all())


def ends(
    program: Program,
    groups: Groups | None = None,
    after: Mapping[int, int] = MappingProxyType({}),
) -> bool:
    """Whether a program runs to its end; transfers may have to come after some action each."""
    return Machine(program, groups, after).run()


def wired(program: Program) -> dict[int, list[Action]]:
    """The one wire of each device."""
    return {
        lane.device: list(actions)
        for lane, actions in program.contents().items()
        if lane.is_one_wire
    }


def computed(program: Program) -> dict[object, list[Action]]:
    """All lanes that are no wires."""
    contents = program.contents().items()
    return {lane: list(actions) for lane, actions in contents if lane.stream is not Stream.WIRE}


def transfers(program: Program) -> list[tuple[object, ...]]:
    """All sends and receives, wherever they are listed."""
    is_wire = np.isin(program.actions.kind, list(EDGE_END))
    rows = np.flatnonzero(is_wire).tolist()
    return sorted(
        (int(program.device_of[row]), tuple(map(str, program.actions[row]))) for row in rows
    )


@st.composite
def costs(draw: st.DrawFn, program: Program) -> Cost:
    """Seconds of each stage, and links, as a draw has them; some take no time at all."""
    some = st.lists(
        st.sampled_from([0.0, 0.5, 1.0, 1.7, 4.0]),
        min_size=program.stages,
        max_size=program.stages,
    )
    cost = Share().cost(program)
    times = replace(
        cost.times,
        forward=tuple(draw(some)),
        input_grad=tuple(draw(some)),
        weight_grad=tuple(draw(some)),
        update=tuple(draw(some)),
        reduce=tuple(draw(some)),
    )
    link = Link(draw(st.sampled_from([0.0, 0.2])), draw(st.sampled_from([1.0, 5.0, float("inf")])))
    return replace(cost, times=times, network=replace(cost.network, message=1.0, default=link))

"""Flow: the lanes of a program that does not flush, without their end.

    prologue   F0 F1 F2
    body       F3 B0 U  F4 B1 U ...      again and again, a step further each time

A call runs what it has the data for, and stops in front of the first microbatch that is not there.
Draining runs what is left of the microbatches that are; the others stay as they are, in their
order. So weights are of the same versions with and without a drain. Knows rows; knows no torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from weft.ir.kinds import Kind
from weft.ir.lanes import Lane
from weft.ir.program import Program

RUNS = 4  # steps that a flow is looked at for how it runs, at least


class Item(NamedTuple):
    """An action of a flow: its row in the program, and which repetition of the body it is of."""

    row: int
    turn: int
    stage: int
    kind: Kind
    microbatch: int  # since the start of the flow; of an update, its last
    version: int  # since the start of the flow


class Flow:
    """The lane of one device."""

    def __init__(self, program: Program, device: int) -> None:
        assert program.period is not None
        self._period, self._step = program.period, program.microbatches
        index = program.lanes.index(Lane(device))
        first, opening = int(program.bounds[index]), program.period.prologue[index]
        rows = range(first, first + opening + program.period.body[index])
        items = [_item(program, row) for row in rows]
        self._prologue, self._body = items[:opening], items[opening:]
        self.restart()

    def restart(self) -> None:
        """Begin again, with the first microbatch and the first version."""
        self._coming = self._endless()
        self._kept: deque[Item] = deque()

    def until(self, given: int) -> Iterator[Item]:
        """What comes next, as far as the given microbatches reach."""
        while True:
            item = self._kept.popleft() if self._kept else next(self._coming)
            if item.microbatch >= given:
                self._kept.appendleft(item)
                return
            yield item

    def drained(self, given: int) -> Iterator[Item]:
        """All that is left of the given microbatches: none are where a whole body has none."""
        kept, since = deque[Item](), 0  # the last that was of them
        while since < len(self._prologue) + len(self._body):
            item = self._kept.popleft() if self._kept else next(self._coming)
            since += 1
            if item.microbatch < given:
                since = 0
                yield item
            else:
                kept.append(item)
        self._kept = kept + self._kept

    def _endless(self) -> Iterator[Item]:
        yield from self._prologue
        for turn in count():
            further = turn * self._period.microbatches
            for item in self._body:
                yield item._replace(
                    turn=turn,
                    microbatch=item.microbatch + further,
                    version=item.version + turn * self._period.versions,
                )


def _item(program: Program, row: int) -> Item:
    actions = program.actions
    kind, version = Kind(int(actions.kind[row])), int(actions.version[row])
    is_update = kind is Kind.UPDATE
    last = (version + 1) * program.microbatches - 1
    microbatch = last if is_update else int(actions.microbatch[row])
    return Item(row, 0, int(actions.stage[row]), kind, microbatch, version)


def horizon(program: Program) -> int:
    """Microbatches in which a flow shows all that it ever does: prologue and body are of them."""
    return max(RUNS, program.devices + 2, program.steps) * program.microbatches


def most_in_flight(program: Program) -> int:
    """How far a device's forwards are ahead of its oldest backward at most, in microbatches."""
    most = 0
    for device in range(program.devices):
        open_: set[tuple[int, int]] = set()
        for item in Flow(program, device).until(horizon(program)):
            if item.kind is Kind.F:
                open_.add((item.microbatch, item.stage))
                most = max(most, item.microbatch - min(open_)[0] + 1)
            elif item.kind is Kind.B:
                open_.remove((item.microbatch, item.stage))
    return most


def flight(program: Program, given: int) -> Program:
    """What has run once so many microbatches are drained, as a program of its own."""
    flows = {device: Flow(program, device) for device in range(program.devices)}
    return run_of(program, {d: [*f.until(given), *f.drained(given)] for d, f in flows.items()})


def run_of(program: Program, items: Mapping[int, Sequence[Item]], first: int = 0) -> Program:
    """These items by device as a program, counted from the update at which they begin."""
    lanes, behind = {}, first * program.microbatches
    for device, run in items.items():
        numbers = [-1 if item.kind is Kind.UPDATE else item.microbatch - behind for item in run]
        rows = np.array([item.row for item in run], np.int64)
        lanes[Lane(device)] = program.actions.take(rows).replace(
            microbatch=np.array(numbers, np.int32),
            version=np.array([max(0, item.version - first) for item in run], np.int32),
            joined=0,
        )
    return program.with_lanes(lanes, period=None)

"""The ring: a program that runs without end, in which numbers of microbatches come again.

    prologue   F0 F1 F2
    body       F3 B0 U  F4 B1 U ...      repeated, a step further each time

A synchronous program is all body. A microbatch has the number (its count mod `numbers`); a lap is
how often that number was there before. Each (number, lap) runs the same action of `program`, which
has every number once. Knows rows; knows no torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple, TypeAlias

import numpy as np

from weft.ir.actions import Actions, Index
from weft.ir.graph import Backward
from weft.ir.kinds import Kind, Stream
from weft.ir.lanes import Lane, Period
from weft.ir.program import Program
from weft.lower import StepOrder, onload_steps, transfer_steps

SPARE = 8  # numbers beyond those of the microbatches in flight
LEAST_STEPS = 4  # in which a periodic program shows what it does, at least
PER_UPDATE = (
    Kind.REDUCE,
    Kind.UPDATE,
    Kind.GATHER,
)  # kinds that belong to an update, not to a microbatch

ActionKey: TypeAlias = tuple[int, ...]  # of one action of a program


class Item(NamedTuple):
    """An action that is to run: its row in the ring's program, its lap, and the data it needs.

    Microbatches are counted from the start. A transfer that has to keep an order may wait for
    others, so that it takes place when more data are given than it carries; so does a sum that has
    a place in the order of steps. What comes back from the host waits until it is needed soon.
    """

    row: int
    lap: int
    needs: int  # the last microbatch that it is about
    given: int  # the last microbatch that has to be given
    place: float = 0.0  # in the order of steps, where that is asked for


class Ring:
    """A lowered program as it is run: what comes next on each lane, by rows of `program`."""

    def __init__(self, source: Program) -> None:
        self.source = source
        self._period = source.period or Period(
            prologue=(0,) * len(source.lanes),
            body=tuple(np.diff(source.bounds).tolist()),
            microbatches=source.microbatches,
        )
        self.program = source if source.period is None else _each_number_once(source)
        self.numbers = self.program.microbatches * self.program.steps
        self.updates = self.program.steps  # of a lap
        self._rows = {key: row for row, key in enumerate(keys_of(self.program.actions))}

    @property
    def is_periodic(self) -> bool:
        return self.source.period is not None

    def items(self, lane: Lane) -> Iterator[Item]:
        """All that a lane ever runs."""
        index = self.source.lanes.index(lane)
        first, opening = int(self.source.bounds[index]), self._period.prologue[index]
        actions = self.source.actions.take(slice(first, first + opening + self._period.body[index]))
        keys, needs = list(keys_of(actions)), last_needed(self.source, actions).tolist()
        per_update = np.isin(actions.kind, PER_UPDATE).tolist()
        given = needs
        if self.is_periodic and (lane.is_one_wire or lane.stream is Stream.ONLOAD):
            steps_of = transfer_steps if lane.is_one_wire else onload_steps
            steps = steps_of(self.source)[first : first + len(keys)]
            given = ((steps + 1) * self.source.microbatches - 1).tolist()
        rows = list(zip(keys, needs, given, per_update, strict=True))
        for row in rows[:opening]:
            yield self._item(*row, turn=0)
        for turn in count() if len(rows) > opening else ():
            for row in rows[opening:]:
                yield self._item(*row, turn=turn)

    def _item(self, key: ActionKey, needs: int, given: int, per_update: bool, *, turn: int) -> Item:
        """An action that many turns later."""
        *rest, version, microbatch = key
        if per_update:
            lap, version = divmod(version + turn * self._period.versions, self.updates)
        else:
            lap, microbatch = divmod(microbatch + turn * self._period.microbatches, self.numbers)
        row = self._rows[(*rest, version, microbatch)]
        later = turn * self._period.microbatches
        return Item(row, lap, needs + later, given + later)

    def settled(self, updates: int) -> int:
        """The fewest updates after which a program goes on as after these."""
        least, turn = horizon(self.source), self._period.versions
        return updates - max(0, updates - least) // turn * turn

    def update(self, item: Item) -> int:
        """The update that an action belongs to, counted from the start."""
        return item.needs // self.source.microbatches


class Course:
    """What comes next on a lane; it can be taken as far as data reach, and drained."""

    def __init__(self, ring: Ring, lane: Lane, order: StepOrder | None = None) -> None:
        self._ring, self.lane, self._order = ring, lane, order
        self._longest = 2 * int(np.diff(ring.source.bounds).max(initial=1))
        self.restart()

    def restart(self) -> None:
        """Begin again, with the first microbatch."""
        items = self._ring.items(self.lane)
        self._coming = items if self._order is None else self._placed(items, self._order)
        self._kept: deque[Item] = deque()

    def _placed(self, items: Iterator[Item], order: StepOrder) -> Iterator[Item]:
        """With their places; a sum waits for all data that its place needs."""
        source, is_sum = self._ring.source, self.lane.stream is Stream.REDUCE
        for item, place in zip(items, order.places(source.lanes.index(self.lane)), strict=False):
            reached = (order.step(place) + 1) * source.microbatches - 1
            yield item._replace(place=place, given=reached if is_sum else item.given)

    def next(self) -> Item | None:
        """What comes next, if anything ever does."""
        return self._kept.popleft() if self._kept else next(self._coming, None)

    def put_back(self, item: Item) -> None:
        self._kept.appendleft(item)

    def until(self, given: int) -> Iterator[Item]:
        """What comes next, as far as the given microbatches reach."""
        while (item := self.next()) is not None:
            if item.given >= given:
                self.put_back(item)
                return
            yield item

    def drained(self, given: int) -> Iterator[Item]:
        """All that is left of the given microbatches; the others stay, in their order."""
        kept, since = deque[Item](), 0  # how many others came since the last of them
        while since < self._longest and (item := self.next()) is not None:
            since += 1
            if item.needs < given:
                since = 0
                yield item
            else:
                kept.append(item)
        self._kept = kept + self._kept


def last_needed(program: Program, actions: Actions) -> Index:
    """For each action the last microbatch whose data it needs: of an update, the last of its."""
    by_update = (actions.version + 1) * program.microbatches - 1
    is_update = np.isin(actions.kind, PER_UPDATE)
    return np.where(is_update, by_update, actions.microbatch + actions.span - 1).astype(np.int64)


def window(program: Program, first: int, updates: int) -> Program:
    """These updates of a periodic program, drained, as a program that begins with them."""
    step, period = program.microbatches, program.period
    assert period is not None
    skipped = max(0, first - horizon(program)) // period.versions * period.versions
    start, stop = (first - skipped) * step, (first - skipped + updates) * step
    repeats = 2 + max(0, -(-(stop - program.steps * step) // period.microbatches))
    whole = program.unrolled(repeats + max(_repeats(program), 1))
    needs = last_needed(whole, whole.actions)
    is_mine = (needs >= start) & (needs < stop)
    lanes = {}
    for index, lane in enumerate(whole.lanes):
        mine = np.flatnonzero(is_mine & (whole.lane_of == index))
        actions = whole.actions.take(mine)
        shifted = np.where(actions.microbatch >= 0, actions.microbatch - start, actions.microbatch)
        since = np.maximum(actions.version - (first - skipped), 0)
        lanes[lane] = actions.replace(
            microbatch=shifted, version=np.where(actions.version >= 0, since, -1), joined=0
        )
    return program.with_lanes(lanes, period=None)


def horizon(program: Program) -> int:
    """Updates in which a periodic program shows all that it ever does."""
    return max(LEAST_STEPS, program.devices + 2, program.steps)


def most_in_flight(program: Program) -> int:
    """How far a device's forwards are ahead of its oldest backward at most, in microbatches."""
    whole = program.unrolled(_repeats(program) + LEAST_STEPS)
    ends = [_ends(stage.backward) for stage in program.graph.stages]
    most = 1
    for index in np.flatnonzero(whole.is_on_compute).tolist():
        open_: set[tuple[int, int]] = set()
        for action in whole.lane(index):
            first = action.microbatch or 0
            covered = {(m, action.stage) for m in range(first, first + action.span)}
            if action.kind is Kind.F and ends[action.stage]:
                open_ |= covered
                most = max(most, first + action.span - min(open_)[0])
            elif action.kind in ends[action.stage]:
                open_ -= covered
    return most


def _ends(backward: Backward) -> tuple[Kind, ...]:
    """The kinds of which one ends what a stage does for a microbatch after its forward."""
    return {
        Backward.FULL: (Kind.B, Kind.W),
        Backward.INPUT: (Kind.B, Kind.I),
        Backward.NONE: (),
    }[backward]


def _repeats(program: Program) -> int:
    """Repetitions of the body that reach the horizon."""
    assert program.period is not None
    missing = (horizon(program) - program.steps) * program.microbatches
    return 1 + max(0, -(-missing // program.period.microbatches))


def _each_number_once(program: Program) -> Program:
    """Numbers come again with the body, so that what it does for one is the same each time."""
    assert program.period is not None
    step = program.period.microbatches
    numbers = -(-(most_in_flight(program) + max(step, SPARE)) // step) * step
    return window(program, 0, numbers // program.microbatches)


def keys_of(actions: Actions) -> Iterator[ActionKey]:
    """What makes an action the only one of a program; of updates, their version is part of it."""
    is_update = np.isin(actions.kind, PER_UPDATE)
    columns = (
        actions.kind,
        actions.stage,
        actions.pipe,
        actions.edge,
        actions.segment,
        np.where(is_update, actions.version, -1),
        actions.microbatch,
    )
    return zip(*(column.tolist() for column in columns), strict=True)

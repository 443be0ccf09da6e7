"""Meetings: what transfers on one wire wait for if a send waits until its receive is reached.

A device posts the transfers of its wire one by one, or several as a group. A group starts when
all that it sends is computed and the group before it has ended. A transfer takes place when the
groups of both its ends have started; a group ends when all of its transfers have taken place:

    wire of device 0   [ S0 R1 ]  [ S2 ]          S0 and R1 at once, both with device 1
    wire of device 1   [ R0 S1 ]  [ R2 ]

Each group is two nodes of the in-order machine, its start and its end. Where that machine runs to
its end, nothing waits in a circle, whatever anything costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.cost import Cost
from weft.errors import InputError
from weft.ir.actions import Index
from weft.ir.earliest import Precedence, Seconds, earliest
from weft.ir.program import Program
from weft.ir.values import Value

# For each device that has one wire, how many transfers each of its groups has, in order.
Groups: TypeAlias = Mapping[int, Sequence[int]]


def singly(program: Program) -> dict[int, tuple[int, ...]]:
    """Each transfer in a group of its own."""
    lengths = zip(program.lanes, np.diff(program.bounds).tolist(), strict=True)
    return {lane.device: (1,) * length for lane, length in lengths if lane.is_one_wire}


@dataclass(frozen=True, slots=True, eq=False)
class Meetings:
    """A program on the in-order machine, with a start and an end for each group.

    begin, finish       for each action, the node at which it starts and the one at which it ends
    consumer, producer  for each wait of `precedence`, who waits for whom
    is_met              for each wait, whether one end of a transfer waits for the other
    """

    program: Program
    precedence: Precedence = field(repr=False)
    begin: Index = field(repr=False)
    finish: Index = field(repr=False)
    consumer: Index = field(repr=False)
    producer: Index = field(repr=False)
    is_met: NDArray[np.bool_] = field(repr=False)

    @classmethod
    def of(cls, program: Program, groups: Groups) -> Meetings:
        """The machine of a program whose wires are posted in these groups."""
        is_one_wire = _is_one_wire(program)
        first = np.flatnonzero(_opens(program, groups))  # of each slot and each group
        is_group = is_one_wire[first]
        start = np.arange(len(first)) + np.cumsum(is_group) - is_group
        mine = np.searchsorted(first, np.arange(len(program)), "right") - 1
        begin, finish = start[mine], (start + is_group)[mine]

        needs, rows = program.dependencies, np.flatnonzero(~program.is_fused)
        consumer, producer = needs.consumer[rows], needs.producer[rows]
        meets = (needs.value[rows] == Value.MESSAGE) & is_one_wire[consumer] & is_one_wire[producer]
        waits = np.concatenate([consumer, producer[meets]])
        awaited = np.concatenate([producer, consumer[meets]])
        is_met = np.concatenate([meets, meets[meets]])
        nodes = np.append(start, len(first) + is_group.sum())
        precedence = Precedence(
            bounds=nodes[np.searchsorted(first, program.bounds)],
            consumer=np.where(is_met, finish[waits], begin[waits]),
            producer=np.where(is_met, begin[awaited], finish[awaited]),
            delay=np.zeros(len(waits)),
        )
        return cls(program, precedence, begin, finish, waits, awaited, is_met)

    def start(self) -> Seconds:
        """When each node starts if every one takes a second; infinity where it never does."""
        return earliest(self.precedence, np.ones(self.precedence.slots))

    def ends(self, cost: Cost) -> Seconds:
        """When each action ends, by a cost."""
        program, nodes = self.program, self.precedence.slots
        length, gap = np.zeros(nodes), np.zeros(nodes)
        slots = self.begin[program.first_of_slot]
        arrival, is_group = self.transfer_seconds(cost), self.begin != self.finish
        np.maximum.at(length, slots, cost.durations(program))
        np.maximum.at(length, self.begin[is_group], arrival[is_group])
        gap[slots] = cost.gaps(program)
        delay = np.zeros(len(self.consumer))
        values = np.flatnonzero(~program.is_fused)
        delay[: len(values)] = cost.delays(program)[values]
        taken = arrival[self.consumer] - length[self.begin[self.producer]]
        delay = np.where(self.is_met, taken, delay)
        precedence = replace(self.precedence, delay=delay).with_gaps(gap)
        start = earliest(precedence, length + gap)
        return np.asarray((start + length)[self.finish])

    def seconds(self, cost: Cost) -> float:
        """When all is over, by a cost."""
        return float(self.ends(cost).max(initial=0.0))

    def transfer_seconds(self, cost: Cost) -> Seconds:
        """For each end of a transfer, from when both have started to when it is over."""
        needs = self.program.dependencies
        rows = np.flatnonzero(needs.value == Value.MESSAGE)
        taken = cost.durations(self.program)[self.program.slot_of]
        taken[needs.consumer[rows]] = taken[needs.producer[rows]] + cost.delays(self.program)[rows]
        return taken


def unrolled(program: Program, groups: Groups, repeats: int) -> dict[int, tuple[int, ...]]:
    """The groups of a program's wires when its body is repeated this often."""
    if program.period is None:
        return {device: tuple(sizes) for device, sizes in groups.items()}
    found = {}
    for index, lane in enumerate(program.lanes):
        if lane.is_one_wire:
            opening, length = program.period.prologue[index], program.period.body[index]
            sizes = _sizes_on(program, index, groups)
            before, body, after = _cut(sizes, (opening, opening + length))
            found[lane.device] = (*before, *body * repeats, *after)
    return found


def _sizes_on(program: Program, wire: int, groups: Groups) -> Sequence[int]:
    """The groups of a wire, by the index of its lane, which have each of its transfers once."""
    device, length = program.lanes[wire].device, len(program.lane(wire))
    sizes = groups.get(device, ())
    if sum(sizes) != length or min(sizes, default=1) < 1:
        raise InputError(
            f"{program.name}: the groups of device {device} have {sum(sizes)} transfers, its wire"
            f" has {length}. Put each into one group"
        )
    return sizes


def _cut(sizes: Sequence[int], places: Sequence[int]) -> list[tuple[int, ...]]:
    """Groups before, between and after these places of a wire, each of which is between two."""
    ends = np.cumsum(sizes, dtype=np.int64)
    bounds = [0, *np.searchsorted(ends, places, "right").tolist(), len(sizes)]
    found = [tuple(sizes[first:stop]) for first, stop in pairwise(bounds)]
    if np.cumsum([sum(part) for part in found])[:-1].tolist() != [*places]:
        raise InputError("a group has transfers of the body and others. Cut it where they meet")
    return found


def _is_one_wire(program: Program) -> NDArray[np.bool_]:
    """For each action, whether it is on its device's one wire."""
    lanes = [index for index, lane in enumerate(program.lanes) if lane.is_one_wire]
    found: NDArray[np.bool_] = np.isin(program.lane_of, lanes)
    return found


def _opens(program: Program, groups: Groups) -> NDArray[np.bool_]:
    """For each action, whether it is the first of its slot or of its group."""
    opens: NDArray[np.bool_] = np.equal(program.actions.joined, 0)
    for index, lane in enumerate(program.lanes):
        if lane.is_one_wire:
            first, sizes = int(program.bounds[index]), _sizes_on(program, index, groups)
            ends = first + np.cumsum(sizes, dtype=np.int64)
            opens[first : program.bounds[index + 1]] = False
            opens[ends - np.array(sizes, np.int64)] = True
    return opens

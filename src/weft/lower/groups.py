"""Groups: transfers of a device that take place at the same time and are posted together.

    wire of device 1    R4 S0  R5 S1  R6 S2         as an activation comes, a gradient goes
    posted as           [R4 S0] [R5 S1] [R6 S2]     both directions at once

A transfer joins the one before it on a wire if the values of both are there at nearly the same
time. Groups in which devices would wait for each other in a circle are dissolved, and all of them
are where by the simulation they cost time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.cost import Cost, Share
from weft.errors import ProgramError
from weft.ir.actions import Index
from weft.ir.earliest import Seconds
from weft.ir.kinds import Stream
from weft.ir.lanes import Lane
from weft.ir.program import Program
from weft.lower.meetings import Groups, Meetings, singly
from weft.lower.transfers import transfer_steps

TOLERANCE = 0.25  # of the time of a transfer
_BODIES = 8  # in which a program that repeats has settled
_NOISE = 1e-9  # of all seconds: times that differ by less are equal

_Mask: TypeAlias = NDArray[np.bool_]


def groups_of(
    program: Program, cost: Cost | None = None, *, tolerance: float = TOLERANCE
) -> Groups:
    """For each device with one wire, the sizes of its groups, in the order of the wire.

    tolerance  how much later a value may be there than another of its group, in shares of the
               time that the shortest of their transfers takes

    In a program that repeats no group crosses the ends of a body, each body has the same, and all
    transfers of a group take place with the data of one step.
    """
    cost, run = cost or Share().cost(program), _Run.of(program)
    alone = Meetings.of(run.whole, singly(run.whole))
    joins = run.dissolved(run.settled(_near(alone, cost, tolerance)))
    together = Meetings.of(run.whole, _sizes(run.whole, joins[run.listed]))
    if together.seconds(cost) > alone.seconds(cost) * (1 + _NOISE):
        return singly(program)
    return _sizes(program, joins)


def launched_after(program: Program, groups: Groups, cost: Cost | None = None) -> dict[int, int]:
    """For the last transfer of each group, an action of its device after which it is launched.

    A transfer that waits for its other end keeps a GPU busy, and slows down what is computed
    beside it. So none is launched before what its device has computed, by the simulation, when its
    other end is there. That simulation is a run in which nothing waits in a circle, and what is
    asked for here is so in it: there is none with these waits either. Not for what repeats.
    """
    if program.period is not None:
        return {}
    cost = cost or Share().cost(program)
    ends, found = Meetings.of(program, groups).ends(cost), dict[int, int]()
    starts = ends - cost.durations(program)[program.slot_of]
    noise = _NOISE * ends.max(initial=0.0)
    computing = {lane.device: i for i, lane in enumerate(program.lanes) if _computes(lane)}
    for index, lane in enumerate(program.lanes):
        if lane.is_one_wire and lane.device in computing:
            first, stop = program.bounds[computing[lane.device] :][:2].tolist()
            last = int(program.bounds[index]) - 1 + np.cumsum(groups[lane.device])
            for row in last.tolist():
                is_over = ends[first:stop] <= ends[row] + noise
                is_over &= starts[first:stop] < ends[row] - noise
                if is_over.any():
                    found[row] = first + int(np.flatnonzero(is_over)[-1])
    return found


def _computes(lane: Lane) -> bool:
    return lane.stream is Stream.COMPUTE


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """A program as it runs; where it repeats, long enough to settle.

    listed  for each action of the whole run, the one of the program that it repeats
    shown   for each action of the program, one of the run that it stands for; of a body, a late one
    is_cut  for each action of the program, whether no group may have it and the one before it
    """

    program: Program
    whole: Program
    listed: Index = field(repr=False)
    shown: Index = field(repr=False)
    is_cut: _Mask = field(repr=False)

    @classmethod
    def of(cls, program: Program) -> _Run:
        rows, is_cut = np.arange(len(program)), np.zeros(len(program) + 1, np.bool_)
        is_cut[program.bounds[:-1]] = True
        if program.period is None:
            return cls(program, program, rows, rows, is_cut[:-1])
        parts: list[Index] = []
        for index, (first, stop) in enumerate(pairwise(program.bounds.tolist())):
            body = first + program.period.prologue[index]
            end = body + program.period.body[index]
            is_cut[[body, end]] = True
            parts += [rows[first:body], *[rows[body:end]] * _BODIES, rows[end:stop]]
        is_cut[1:-1] |= np.diff(transfer_steps(program)) != 0
        listed = np.concatenate(parts)
        count, order = np.bincount(listed), np.argsort(listed, kind="stable")
        shown = order[np.searchsorted(listed[order], rows) + 2 * count // 3]
        return cls(program, program.unrolled(_BODIES), listed, shown, is_cut[:-1])

    def settled(self, joins: _Mask) -> _Mask:
        """For each action of the program, whether it joins the one before it in the settled run."""
        return np.asarray(joins[self.shown] & ~self.is_cut)

    def dissolved(self, joins: _Mask) -> _Mask:
        """Without the groups at which devices would wait for each other, until none do."""
        while True:
            meetings = Meetings.of(self.whole, _sizes(self.whole, joins[self.listed]))
            stuck = np.flatnonzero(~np.isfinite(meetings.start()[meetings.finish]))
            if not len(stuck):
                return joins
            _, first = np.unique(self.whole.lane_of[stuck], return_index=True)
            is_next = np.isin(meetings.begin, meetings.begin[stuck[first]])
            kept = joins.copy()
            kept[self.listed[is_next]] = False
            if np.array_equal(kept, joins):
                name = self.program.name
                raise ProgramError([f"{name} never ends: `verify` names the transfer that waits"])
            joins = kept


def _near(alone: Meetings, cost: Cost, tolerance: float) -> _Mask:
    """For each action, whether its value is there when those of the group before it are."""
    program, ends = alone.program, alone.ends(cost)
    ready = ends[program.origin]
    allowed = tolerance * alone.transfer_seconds(cost) + _NOISE * ends.max(initial=0.0)
    joins = np.zeros(len(program), np.bool_)
    for index, lane in enumerate(program.lanes):
        if lane.is_one_wire:
            mine = slice(*program.bounds[index : index + 2].tolist())
            joins[mine] = _chained(ready[mine], allowed[mine])
    return joins


def _chained(ready: Seconds, allowed: Seconds) -> _Mask:
    """Greedily from the first on: whether one is near all others of the group before it."""
    joins = np.zeros(len(ready), np.bool_)
    soonest = latest = least = 0.0
    for place, (time, most) in enumerate(zip(ready.tolist(), allowed.tolist(), strict=True)):
        spread = max(latest, time) - min(soonest, time)
        joins[place] = place > 0 and spread <= min(least, most)
        if not joins[place]:
            soonest, latest, least = time, time, most
        soonest, latest, least = min(soonest, time), max(latest, time), min(least, most)
    return joins


def _sizes(program: Program, joins: _Mask) -> dict[int, tuple[int, ...]]:
    """The groups of each wire, by who joins the transfer before."""
    found = {}
    for index, lane in enumerate(program.lanes):
        if lane.is_one_wire:
            first, stop = program.bounds[index : index + 2].tolist()
            opens = np.flatnonzero(~joins[first:stop])
            found[lane.device] = tuple(np.diff(opens, append=stop - first).tolist())
    return found

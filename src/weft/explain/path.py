"""The critical path in legs: an action from device to device, or a run on one of them.

F0      on 0 > 1 > 2      3
F0..B7  on 3             24
B7      on 2 > 1 > 0      6
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Leg:
    """Actions one after the other: on one device, or the same work on a chain of them."""

    devices: tuple[int, ...]
    actions: tuple[int, ...]
    start: float
    end: float

    @property
    def is_passed_on(self) -> bool:
        """Whether it is one action that travels, not a run on one device."""
        return len(self.devices) > 1


@dataclass(frozen=True, slots=True)
class Path:
    """The legs in order; `kinds` has the seconds of each kind, `waiting` those of nobody."""

    legs: tuple[Leg, ...]
    kinds: dict[Kind, float]
    waiting: float

    @property
    def actions(self) -> int:
        return sum(len(leg.actions) for leg in self.legs)


def path(timeline: Timeline) -> Path:
    """What decides the makespan."""
    actions = timeline.critical_path.actions
    kinds: defaultdict[Kind, float] = defaultdict(float)
    for action in actions:
        kind = Kind(int(timeline.program.actions.kind[action]))
        kinds[kind] += float(timeline.end[action] - timeline.start[action])
    known = dict(sorted(kinds.items()))
    waiting = max(0.0, timeline.makespan - sum(known.values()))
    legs = tuple(_leg(timeline, run) for run in _runs(timeline.program, actions))
    return Path(legs, known, waiting)


def _runs(program: Program, actions: tuple[int, ...]) -> Iterator[list[int]]:
    """Runs on a device; those of a single action joined while that goes from device to device."""
    travelling: list[int] = []
    for _, run in groupby(actions, key=lambda action: int(program.device_of[action])):
        stays = list(run)
        if travelling and (len(stays) > 1 or not _is_same(program, travelling[-1], stays[0])):
            yield travelling
            travelling = []
        if len(stays) > 1:
            yield stays
        else:
            travelling += stays
    if travelling:
        yield travelling


def _is_same(program: Program, one: int, other: int) -> bool:
    columns = (program.actions.kind, program.actions.microbatch)
    return all(column[one] == column[other] for column in columns)


def _leg(timeline: Timeline, actions: list[int]) -> Leg:
    on = [int(timeline.program.device_of[action]) for action in actions]
    opening = float(timeline.start.min())
    return Leg(
        devices=tuple(device for device, _ in groupby(on)),
        actions=tuple(actions),
        start=float(timeline.start[actions[0]]) - opening,
        end=float(timeline.end[actions[-1]]) - opening,
    )

"""Staleness: how old the weights of a program are, and what follows for norms and tied weights.

A norm over several stages is known once the last of them has all its gradients. Where the next
version is used later than that, waiting for the norm costs nothing; elsewhere all devices would
wait in every step, and such a norm is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, get_args

import numpy as np

from weft.cost import Share
from weft.errors import InputError
from weft.ir.earliest import Precedence, Seconds, earliest
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.ir.versions import staleness
from weft.ir.weights import StageGroups
from weft.lower import executable, unwired
from weft.lower.periods import released
from weft.runtime.lane.ring import horizon, window
from weft.runtime.ranks.carriers import MOST_COPIES
from weft.runtime.weights.options import Scope
from weft.runtime.weights.ties import End
from weft.verify.periods import without_end


class Wait(NamedTuple):
    """A forward, and an update that has to be there for it: rows of a program."""

    reader: int
    update: int


class Versions:
    """Which version a stage uses for a microbatch, both counted from the start of the program."""

    def __init__(self, program: Program) -> None:
        self.microbatches, self.is_stale = program.microbatches, program.period is not None
        self._name, self._period = program.name, program.period
        self._known: list[dict[int, int]] = [{} for _ in range(program.stages)]
        run = program if program.period is None else window(program, 0, horizon(program))
        for action in run.actions:
            if action.kind is Kind.F and action.microbatch is not None:
                for microbatch in range(action.microbatch, action.microbatch + action.span):
                    newest = microbatch // self.microbatches  # what names no version never changes
                    known = newest if action.version is None else action.version
                    self._known[action.stage][microbatch] = known

    def of(self, stage: int, microbatch: int) -> int:
        if self._period is None:
            return microbatch // self.microbatches
        known, shift = self._known[stage], self._period.microbatches
        turns = max(0, -(-(microbatch + 1 - len(known)) // shift))
        return known[microbatch - turns * shift] + turns * self._period.versions

    def staleness(self, stage: int, update: int) -> int:
        """How many updates the first microbatch of one does not know yet."""
        return update - self.of(stage, update * self.microbatches)

    def oldest(self, update: int) -> int:
        """The oldest version that any microbatch of an update uses anywhere."""
        first = update * self.microbatches
        return min(
            self.of(stage, microbatch)
            for stage in range(len(self._known))
            for microbatch in range(first, first + self.microbatches)
        )

    def predicted(self, stage: int) -> int:
        """The staleness of all microbatches, which a prediction needs to be one."""
        found = {m // self.microbatches - v for m, v in self._known[stage].items() if v}
        if len(found) > 1:
            raise InputError(
                f"stage {stage} of {self._name} uses versions that are {min(found)} and"
                f" {max(found)} updates stale: there is no one prediction for it. Use a variant"
                f" that is not fresh"
            )
        return found.pop() if found else 0


def scoped(program: Program, scope: Scope | None) -> StageGroups:
    """The stages that share a norm: by the scope asked for, or the widest that does not stall."""
    if program.period is None:
        return groups_of(program, scope or "global")
    base = unwired(executable(program))
    free = [name for name in get_args(Scope) if not _stalls(base, groups_of(base, name))]
    if scope is None:
        return groups_of(base, free[0])
    if scope not in free:
        raise InputError(
            f"all devices of {program.name} would wait in every step for a norm by {scope}: a stage"
            f" uses its next version before the slowest of the others has its gradients. Clip by"
            f" {free[0]}"
        )
    return groups_of(base, scope)


def groups_of(program: Program, scope: Scope) -> StageGroups:
    """All stages, those that are equally stale, or each for itself."""
    if scope == "global":
        return ((*range(program.stages),),)
    if scope == "stage":
        return tuple((stage,) for stage in range(program.stages))
    groups: dict[int, list[int]] = {}
    for stage, stale in enumerate(staleness(program)):
        groups.setdefault(stale, []).append(stage)
    return tuple(tuple(stages) for stages in groups.values())


def _stalls(program: Program, groups: StageGroups) -> bool:
    """Whether a run takes longer once every version waits for the updates of a whole group.

    Where nothing is stashed backwards would have to wait as well.
    """
    if not program.is_stashing and any(len(stages) > 1 for stages in groups):
        return True
    run, endless = _run(program)
    free, bound = _ends(run, []), _ends(run, _waits(run, groups))
    return _needs_later_data(endless, _waits(endless, groups)) or bool(
        bound.max() > free.max() + 1e-9
    )


def _run(program: Program) -> tuple[Program, Program]:
    """As much of a program as shows what it ever does: drained, and without an end."""
    updates = horizon(program)
    return window(program, 0, updates), without_end(program, updates * program.microbatches)


def _ends(run: Program, waits: Sequence[Wait]) -> Seconds:
    """When each slot ends with unit costs if it waits for these as well."""
    durations = Share().cost(run).durations(run)
    free = run.precedence(np.zeros(len(run.dependencies)))
    rows = np.array(waits, np.int64).reshape(-1, 2)
    bound = Precedence(
        free.bounds,
        np.concatenate([free.consumer, run.slot_of[rows[:, 0]]]),
        np.concatenate([free.producer, run.slot_of[rows[:, 1]]]),
        np.zeros(len(free.consumer) + len(rows)),
    )
    return earliest(bound, durations) + durations


def _needs_later_data(endless: Program, waits: Sequence[Wait]) -> bool:
    """Whether a forward would wait for an update that needs the data of a later step."""
    step = released(endless)
    return any(step[update] > step[reader] for reader, update in waits)


def _waits(run: Program, groups: StageGroups) -> list[Wait]:
    """Each first forward with a version, and every update before it in its group."""
    group = {stage: number for number, stages in enumerate(groups) for stage in stages}
    made: dict[tuple[int, int], list[int]] = {}
    first: dict[tuple[int, int], int] = {}
    for row, action in enumerate(run.actions):
        version = action.version or 0
        if action.kind is Kind.UPDATE:
            made.setdefault((group[action.stage], version + 1), []).append(row)
        elif action.kind is Kind.F:
            first.setdefault((action.stage, version), row)
    return [
        Wait(row, update)
        for (stage, version), row in first.items()
        for update in made.get((group[stage], version), ())
    ]


def under_way(program: Program) -> int:
    """Updates whose gradients may be on their way between copies at once.

    The copy that is ahead waits for weights that are as many updates old as they are stale.
    """
    return max(staleness(program)) + 1


def check_ties(program: Program, ties: Sequence[Sequence[End]]) -> None:
    """Refuse a tied weight of an asynchronous program whose ends are far apart in time."""
    if program.period is None or not ties:
        return
    base = unwired(executable(program))
    stale, (run, endless) = staleness(base), _run(base)
    for ends in ties:
        whose = f"{ends[0].name} of stage {ends[0].stage} is tied"
        both = f"{whose} to {ends[-1].name} of stage {ends[-1].stage}"
        if not program.is_stashing:
            raise InputError(
                f"{both}, and {program.name} stashes nothing: the two would use different versions"
                f" of it. Use a schedule that stashes, or keep them apart"
            )
        if under_way(base) * len(ends) ** 2 > MOST_COPIES:
            raise InputError(
                f"{whose}, but {program.name} uses versions {max(stale)} updates stale: too many of"
                f" its gradients would be on their way. Use fewer devices, or pipedream-2bw"
            )
        found = [stale[end.stage] for end in ends]
        if max(found) - min(found) > 1:
            raise InputError(
                f"{both}, but {program.name} uses versions {max(found)} and {min(found)} updates"
                f" stale there: keep them apart, in one stage, or use a schedule whose stages are"
                f" equally stale (pipedream with vertical-sync, pipedream-2bw)"
            )
        waits = _waits_of_tie(endless, ends)
        if (
            _needs_later_data(endless, waits)
            or np.isinf(_ends(run, _waits_of_tie(run, ends))).any()
        ):
            raise InputError(
                f"{both}, but {program.name} would wait there for gradients that come later. Keep"
                f" them apart, or let all of these stages use older versions"
            )


def _waits_of_tie(run: Program, ends: Sequence[End]) -> list[Wait]:
    """Every forward of its stages, and the updates of all of them that the first's version has."""
    used: dict[int, int] = {}
    made: dict[tuple[int, int], int] = {}
    for row, action in enumerate(run.actions):
        if action.kind is Kind.F and action.stage == ends[0].stage:
            used[action.microbatch or 0] = action.version or 0
        elif action.kind is Kind.UPDATE:
            made[action.stage, (action.version or 0) + 1] = row
    stages = {end.stage for end in ends}
    return [
        Wait(row, made[stage, used[action.microbatch or 0]])
        for row, action in enumerate(run.actions)
        if action.kind is Kind.F and action.stage in stages
        for stage in stages
        if (stage, used.get(action.microbatch or 0)) in made
    ]

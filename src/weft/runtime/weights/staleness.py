"""Lags: how late the weights of a flow are, and what follows for norms and tied weights.

A norm over several stages is known once the last of them has all its gradients. Where the next
version is used later than that, waiting for the norm costs nothing; elsewhere the pipeline would
stand still, and such a norm is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from weft.cost import Share
from weft.errors import InputError
from weft.ir.earliest import Precedence, Seconds, earliest
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.ir.versions import staleness
from weft.runtime.lane.flow import flight, horizon
from weft.runtime.ranks.world import MOST_COPIES
from weft.runtime.weights.ties import End
from weft.verify.periods import released, without_end

Scope: TypeAlias = Literal["global", "group", "stage"]  # widest first
Groups: TypeAlias = list[list[int]]  # stages that share a norm


class Wait(NamedTuple):
    """A forward, and an update that has to be there for it: rows of a program."""

    reader: int
    update: int


class Versions:
    """Which version a stage uses for a microbatch, both counted from the start of the flow."""

    def __init__(self, program: Program) -> None:
        assert program.period is not None
        self._shift, self._made = program.period.microbatches, program.period.versions
        self._known: list[dict[int, int]] = [{} for _ in range(program.stages)]
        self._program = flight(program, horizon(program))
        for action in self._program.actions:
            if action.kind is Kind.F and action.microbatch is not None:
                self._known[action.stage][action.microbatch] = action.version or 0
        self.microbatches = program.microbatches

    def of(self, stage: int, microbatch: int) -> int:
        known = self._known[stage]
        turns = max(0, -(-(microbatch + 1 - len(known)) // self._shift))
        return known[microbatch - turns * self._shift] + turns * self._made

    def lag(self, stage: int, update: int) -> int:
        """How many updates the first microbatch of one is late."""
        return update - self.of(stage, update * self.microbatches)

    def oldest(self, update: int) -> int:
        """The oldest version that any microbatch of an update uses anywhere."""
        first = update * self.microbatches
        return min(
            self.of(stage, microbatch)
            for stage in range(len(self._known))
            for microbatch in range(first, first + self.microbatches)
        )

    def lead(self, stage: int) -> int:
        """The lag of all microbatches, which a prediction needs to be one."""
        lags = {m // self.microbatches - v for m, v in self._known[stage].items() if v}
        if len(lags) > 1:
            raise InputError(
                f"stage {stage} of {self._program.name} uses a version {min(lags)} and {max(lags)}"
                f" updates late: there is no one prediction for it. Use a variant that is not fresh"
            )
        return lags.pop() if lags else 0


def scoped(program: Program, scope: Scope | None) -> Groups:
    """The stages that share a norm: by the scope asked for, or the widest that does not stall."""
    if scope is not None and scope not in get_args(Scope):
        raise InputError(f"gradients are clipped by {', '.join(get_args(Scope))}, not {scope!r}")
    free = [name for name in get_args(Scope) if not _stalls(program, groups_of(program, name))]
    if scope is None:
        return groups_of(program, free[0])
    if scope not in free:
        raise InputError(
            f"{program.name} would stand still for a norm by {scope}: a stage uses its next"
            f" version before the slowest of the others has its gradients. Clip by {free[0]}"
        )
    return groups_of(program, scope)


def groups_of(program: Program, scope: Scope) -> Groups:
    """All stages, those that are equally late, or each for itself."""
    if scope == "global":
        return [[*range(program.stages)]]
    if scope == "stage":
        return [[stage] for stage in range(program.stages)]
    groups: dict[int, list[int]] = {}
    for stage, lag in enumerate(staleness(program)):
        groups.setdefault(lag, []).append(stage)
    return [*groups.values()]


def _stalls(program: Program, groups: Groups) -> bool:
    """Whether a run takes longer once every version waits for the updates of a whole group.

    Where nothing is stashed backwards would have to wait as well.
    """
    if not program.is_stashing and any(len(stages) > 1 for stages in groups):
        return True
    run, flow = flight(program, horizon(program)), without_end(program, horizon(program))
    free, bound = _ends(run, []), _ends(run, _waits(run, groups))
    return _is_late(flow, _waits(flow, groups)) or bool(bound.max() > free.max() + 1e-9)


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


def _is_late(flow: Program, waits: Sequence[Wait]) -> bool:
    """Whether a forward would wait for an update that needs the data of a later step."""
    step = released(flow)
    return any(step[update] > step[reader] for reader, update in waits)


def _waits(run: Program, groups: Groups) -> list[Wait]:
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
    """Updates of a tied weight whose gradients may be on their way at once.

    The end that is ahead waits for weights of as many updates ago as they are late.
    """
    return max(staleness(program)) + 1


def check_ties(program: Program, ties: Sequence[Sequence[End]]) -> None:
    """Refuse a tied weight whose ends are far apart in time."""
    lags = staleness(program)
    for ends in ties:
        if under_way(program) * len(ends) ** 2 > MOST_COPIES:
            raise InputError(
                f"{ends[0].name} of stage {ends[0].stage} is tied, but {program.name} uses versions"
                f" {max(lags)} updates late: too many of its gradients would be on their way."
                f" Use fewer devices, or pipedream-2bw"
            )
        late = [lags[end.stage] for end in ends]
        if max(late) - min(late) > 1:
            raise InputError(
                f"{ends[0].name} of stage {ends[0].stage} is tied to {ends[-1].name} of stage"
                f" {ends[-1].stage}, but {program.name} uses versions {max(late)} and {min(late)}"
                f" updates late there: keep them apart, in one stage, or use a schedule whose"
                f" stages are equally late (pipedream with vertical-sync, pipedream-2bw)"
            )
        run, flow = flight(program, horizon(program)), without_end(program, horizon(program))
        waits = _waits_of_tie(flow, ends)
        if _is_late(flow, waits) or np.isinf(_ends(run, _waits_of_tie(run, ends))).any():
            raise InputError(
                f"{ends[0].name} of stage {ends[0].stage} is tied to {ends[-1].name} of stage"
                f" {ends[-1].stage}, but {program.name} would wait there for gradients that come"
                f" later. Keep them apart, or let all of these stages use older versions"
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

"""Lags: how late the weights of a flow are, and what follows for norms and tied weights.

A norm over several stages is known once the last of them has all its gradients. Where the next
version is used later than that, waiting for the norm costs nothing; elsewhere the pipeline would
stand still, and such a norm is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np

from weft.cost import Share
from weft.errors import InputError
from weft.ir.earliest import Precedence, earliest
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.ir.versions import staleness
from weft.runtime.flow import RUNS, flight
from weft.runtime.ties import End

Scope: TypeAlias = Literal["global", "group", "stage"]  # widest first
Groups: TypeAlias = list[list[int]]  # stages that share a norm


class Versions:
    """Which version a stage uses for a microbatch, both counted from the start of the flow."""

    def __init__(self, program: Program) -> None:
        assert program.period is not None
        self._shift = program.period.microbatches
        self._known: list[dict[int, int]] = [{} for _ in range(program.stages)]
        self._program = flight(program, max(RUNS, program.devices + 2) * program.microbatches)
        for action in self._program.actions:
            if action.kind is Kind.F and action.microbatch is not None:
                self._known[action.stage][action.microbatch] = action.version or 0
        self.microbatches = program.microbatches

    def of(self, stage: int, microbatch: int) -> int:
        known = self._known[stage]
        turns = max(0, -(-(microbatch + 1 - len(known)) // self._shift))
        return known[microbatch - turns * self._shift] + turns

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
    run = flight(program, max(RUNS, program.devices + 2) * program.microbatches)
    free = [name for name in get_args(Scope) if not _stalls(run, groups_of(program, name))]
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


def _stalls(run: Program, groups: Groups) -> bool:
    """Whether the run takes longer once every version waits for the updates of a whole group."""
    durations = Share().cost(run).durations(run)
    free = run.precedence(np.zeros(len(run.dependencies)))
    consumer, producer = _waits(run, groups)
    bound = Precedence(
        free.bounds,
        np.concatenate([free.consumer, consumer]),
        np.concatenate([free.producer, producer]),
        np.zeros(len(free.consumer) + len(consumer)),
    )
    ends = [earliest(precedence, durations) + durations for precedence in (free, bound)]
    return bool(ends[1].max() > ends[0].max() + 1e-9)


def _waits(run: Program, groups: Groups) -> tuple[list[int], list[int]]:
    """Pairs of slots: a first forward with a version, and an update before it in its group."""
    actions, slot = run.actions, run.slot_of
    group = {stage: number for number, stages in enumerate(groups) for stage in stages}
    made: dict[tuple[int, int], list[int]] = {}
    first: dict[tuple[int, int], int] = {}
    for row, action in enumerate(actions):
        version = action.version or 0
        if action.kind is Kind.UPDATE:
            made.setdefault((group[action.stage], version + 1), []).append(row)
        elif action.kind is Kind.F:
            first.setdefault((action.stage, version), row)
    pairs = [
        (int(slot[row]), int(slot[update]))
        for (stage, version), row in first.items()
        for update in made.get((group[stage], version), ())
    ]
    return [consumer for consumer, _ in pairs], [producer for _, producer in pairs]


def check_ties(program: Program, ties: Sequence[Sequence[End]]) -> None:
    """Refuse a tied weight whose ends are far apart in time."""
    lags = staleness(program)
    for ends in ties:
        late = [lags[end.stage] for end in ends]
        if max(late) - min(late) > 1:
            raise InputError(
                f"{ends[0].name} of stage {ends[0].stage} is tied to {ends[-1].name} of stage"
                f" {ends[-1].stage}, but {program.name} uses versions {max(late)} and {min(late)}"
                f" updates late there: keep them apart, in one stage, or use a schedule whose"
                f" stages are equally late (pipedream with vertical-sync, pipedream-2bw)"
            )

"""Versions: which weights a method computes with, and in which order it adds gradients.

A method is a function from an update, a microbatch of it and a stage to a version, and little
else. Synchronous is asynchronous with staleness 0. Knows programs and numbers; knows no weights.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from weft.ir.expert_groups import meetings
from weft.ir.graph import Graph
from weft.ir.kinds import Kind
from weft.ir.lanes import Period
from weft.ir.program import Program

Version: TypeAlias = Callable[[int, int, int], int]  # of an update, a microbatch of it, a stage
Recomputed: TypeAlias = Callable[[int, int, int], bool]  # of the same
Order: TypeAlias = Callable[[int, int], Sequence[int]]  # of an update and a stage


def newest(update: int, microbatch: int, stage: int) -> int:
    """The version that all updates before have made."""
    return update


def never(update: int, microbatch: int, stage: int) -> bool:
    """Nothing is recomputed."""
    return False


def always(update: int, microbatch: int, stage: int) -> bool:
    """Everything is recomputed."""
    return True


@dataclass(frozen=True, slots=True)
class Method:
    """How the gradients of an update are computed and added.

    version       which version a stage uses for a microbatch of an update, in both directions
    microbatches  of an update
    backward      another version for the backward, where forward and backward do not agree
    order         in which order a stage's gradients of an update are added; else as they come
    recompute     whether a stage runs again in the backward; matters where forward and backward
                  do not agree
    graph         the stages and the edges between them; else a chain
    pipe_of       the pipe of each microbatch: gradients of a pipe are added first; else one pipe
    meetings      microbatches that exchange tokens with each other, in the order of expert ranks
    """

    version: Version
    microbatches: int
    backward: Version | None = None
    order: Order | None = None
    recompute: Recomputed = never
    graph: Graph | None = None
    pipe_of: tuple[int, ...] | None = None
    meetings: tuple[tuple[int, ...], ...] = ()

    @property
    def is_synchronous(self) -> bool:
        """Whether every stage is known to use the newest weights, always."""
        return self.version is newest and self.backward in (None, newest)

    def added(self, update: int, stage: int) -> Sequence[int]:
        """The microbatches of an update in the order in which a stage adds their gradients."""
        return self.order(update, stage) if self.order else range(self.microbatches)

    def oldest(self, update: int, stages: int) -> int:
        """The oldest version that an update uses anywhere."""
        if self.is_synchronous:
            return update
        return min(
            self.version(update, microbatch, stage)
            for stage in range(stages)
            for microbatch in range(self.microbatches)
        )


def method_of(program: Program) -> Method:
    """What a program means, without its devices."""
    version, backward = versions_of(program)
    return Method(
        version,
        program.microbatches,
        backward=backward,
        order=order_of(program),
        recompute=_recomputed(program),
        graph=program.graph,
        pipe_of=program.pipe_of,
        meetings=tuple(meetings(program.expert_groups, program.pipe_of)),
    )


def versions_of(program: Program) -> tuple[Version, Version | None]:
    """What the forwards of a program use; its backwards, where they differ."""
    if program.period is None and not (program.actions.version > 0).any():
        return newest, None
    forward = _version(program, Kind.F)
    return forward, None if program.is_stashing else _version(program, Kind.B, Kind.I)


def order_of(program: Program) -> Order:
    """In which order the stages of a program add their gradients.

    All segments of a stage do so in one order, of which a whole stage knows nothing else.
    """
    period, found = _period(program), dict[tuple[int, int], dict[int, None]]()
    for stage, microbatch, _ in _listed(program, Kind.B, Kind.W):
        update, index = divmod(microbatch, program.microbatches)
        found.setdefault((update, stage), {})[index] = None
    last = max((update for update, _ in found), default=0) + 1

    def order(update: int, stage: int) -> Sequence[int]:
        turns = _turns(update, last, period.versions)
        return [*found.get((update - turns * period.versions, stage), ())]

    return order


def _version(program: Program, *kinds: Kind) -> Version:
    """What actions of these kinds use; the newest, where they name nothing."""
    period, step = _period(program), program.microbatches
    listed = [*_listed(program, *kinds)]
    found = {(stage, number): version for stage, number, version in listed if version >= 0}
    last = max((number for _, number, _ in listed), default=0) + 1

    def version(update: int, microbatch: int, stage: int) -> int:
        number = update * step + microbatch
        turns = _turns(number, last, period.microbatches)
        earlier = number - turns * period.microbatches
        return found.get((stage, earlier), earlier // step) + turns * period.versions

    return version


def _recomputed(program: Program) -> Recomputed:
    """What is recomputed in a step is so in all of them."""
    shift = _period(program).microbatches
    found = {(stage, number % shift) for stage, number, _ in _listed(program, Kind.R)}

    def recomputed(update: int, microbatch: int, stage: int) -> bool:
        return (stage, (update * program.microbatches + microbatch) % shift) in found

    return recomputed


def _period(program: Program) -> Period:
    """How a program goes on: by its last step, unless it says something else."""
    return program.period or Period((), (), microbatches=program.microbatches)


def _turns(number: int, last: int, shift: int) -> int:
    """How often a period of this length has to be taken back to come to what is listed."""
    return max(0, -(-(number + 1 - last) // shift))


def _listed(program: Program, *kinds: Kind) -> Iterator[tuple[int, int, int]]:
    """Stage, microbatch and version (or -1) of all actions of these kinds, in their order."""
    actions = program.unrolled(1).actions
    rows = np.flatnonzero(np.isin(actions.kind, kinds) & (actions.microbatch >= 0))
    columns = (actions.stage, actions.microbatch, actions.span, actions.version)
    for stage, first, span, version in zip(*(c[rows].tolist() for c in columns), strict=True):
        for microbatch in range(first, first + span):
            yield stage, microbatch, version


def restarted(starts: Sequence[int], method: Method) -> Method:
    """The same, begun again at each of these updates, from the weights there."""
    places = sorted(starts)

    def start(update: int) -> int:
        before = bisect_right(places, update)
        return places[before - 1] if before else 0

    def again(version: Version) -> Version:
        return lambda t, i, s: start(t) + version(t - start(t), i, s)

    def recompute(update: int, microbatch: int, stage: int) -> bool:
        return method.recompute(update - start(update), microbatch, stage)

    def order(update: int, stage: int) -> Sequence[int]:
        return method.added(update - start(update), stage)

    backward = again(method.backward) if method.backward else None
    version = again(method.version)
    return replace(method, version=version, backward=backward, order=order, recompute=recompute)


# Versions of the literature, by update t, microbatch i and stage s of D devices.


def synchronous() -> Version:
    """Every stage uses the newest weights: 1F1B, GPipe, data parallel."""
    return newest


def pipedream(devices: int) -> Version:
    """What a stage has when its forward starts; an update for each microbatch."""
    return lambda t, i, s: max(0, t - (devices - 1 - s))


def vertical_sync(devices: int) -> Version:
    """PipeDream, with what the first stage had in all stages."""
    return lambda t, i, s: max(0, t - (devices - 1))


def pipedream_2bw(fresh_from: int | None = None) -> Version:
    """A staleness of 1; from microbatch `fresh_from` of an update on (D - 1), of 0."""
    return lambda t, i, s: t if fresh_from is not None and i >= fresh_from else max(0, t - 1)


def wpipe(devices: int, fresh_from: int | None = None) -> Version:
    """The first D of 2 D stages as 2BW, fresh after the first round; the others never stale."""
    stale = pipedream_2bw(fresh_from)
    return lambda t, i, s: stale(t, i, s) if s < devices else t

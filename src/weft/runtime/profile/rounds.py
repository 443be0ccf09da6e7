"""Rounds: seconds of the actions of every stage, with all ranks at work.

In a round each rank runs each of its stages in each way, and nobody begins the next before all
have ended this one. So a rank is as busy, and as disturbed by the others, as in a pipeline.

    F B      a whole backward
    F I W    a split one
    F R B    recomputed: this F keeps only its inputs
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from weft.errors import WeftError
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.ir.versions import resident_versions
from weft.runtime.batch import cut
from weft.runtime.losses import LossShare, Parts
from weft.runtime.precision import precision_of
from weft.runtime.profile.found import Found
from weft.runtime.profile.sample import Sample, Watch
from weft.runtime.profile.trial import Trial, Way
from weft.runtime.ranks.world import World
from weft.runtime.stage.randomness import Draw
from weft.runtime.stage.role import Role
from weft.runtime.stage.stage import Stage
from weft.runtime.stage.values import Value
from weft.runtime.suit import is_asynchronous
from weft.runtime.weights.versions import Stash

WARM_UP = 3

WHOLE: Way = (Kind.F, Kind.B)
SPLIT: Way = (Kind.F, Kind.I, Kind.W)
AGAIN: Way = (Kind.F, Kind.R, Kind.B)


class Rounds:
    """The stages that this process holds, copied for each of the ways in which they are timed."""

    def __init__(
        self,
        held: Mapping[int, nn.Module],
        program: Program,
        sample: Sample,
        inputs: Sequence[Sequence[Value]],
        kinds: frozenset[Kind],
    ) -> None:
        self._program, self._graph, self._sample = program, program.graph, sample
        self._precision = precision_of(sample.precision)
        (self._target,) = cut([sample.target], 1, "target")
        weights = (weight for module in held.values() for weight in module.parameters())
        first = next(weights, None)
        if first is not None:
            self._target = self._target.to(first.device)
        in_flight = min(program.microbatches, program.devices)
        self._trials: dict[int, list[Trial]] = {}
        for index, module in held.items():
            with _blamed(index):
                ways = [*ways_of(program, index, kinds)]
                timed = [self._stage(copy.deepcopy(module), index, way) for way in ways]
                self._trials[index] = [
                    Trial(stage, way, inputs[index], in_flight)
                    for stage, way in zip(timed, ways, strict=True)
                ]

    def run(self, world: World, rounds: int, watch: Watch) -> dict[int, Found]:
        """What this process finds of its stages; every rank calls this."""
        found = {index: Found() for index in self._trials}
        for number in range(WARM_UP + rounds):
            world.gather(b"", "a round of timing")
            for index in self._trials:
                timed = self._timed(index)
                if number >= WARM_UP:
                    found[index].add(Found(timed))
            watch("stages", (number + 1) / (WARM_UP + rounds))
        for index, trials in self._trials.items():
            found[index].sizes = trials[0].sizes()
        return found

    def _timed(self, index: int) -> dict[str, list[float]]:
        """Every action once; where two ways have it, the earlier one counts."""
        timed: dict[str, list[float]] = {}
        with _blamed(index):
            for trial in self._trials[index]:
                timed = trial.run() | timed
        return timed

    def _stage(self, module: nn.Module, index: int, way: Way) -> Stage:
        is_passing = bool(self._graph.successors[index])
        role = Role(
            index=index,
            is_first=not self._graph.predecessors[index],
            is_split=Kind.I in way,
            loss=None if is_passing else self._loss,
            stashes=self._stashes(module, index),
            is_stashing=self._program.is_stashing,
            precision=self._precision,
            taken=self._precision.compute,
            handed=self._precision.compute if is_passing else self._precision.judged,
        )
        return Stage(module, Draw(), role)

    def _stashes(self, module: nn.Module, index: int) -> list[Stash]:
        """As a run would have them."""
        is_learning = any(weight.requires_grad for weight in module.parameters())
        types = self._precision.types_of(module)
        if not (is_asynchronous(self._program) or types) or not is_learning:
            return []
        copies = resident_versions(self._program)[index]
        return [Stash(module.named_parameters(), copies, types=types)]

    def _loss(self, output: Any, _: int) -> Tensor:
        parts = Parts.of(self._sample.loss(output, *self._target.arguments))
        return parts.weighted(LossShare(1.0, 1.0), output)


@contextmanager
def _blamed(stage: int) -> Iterator[None]:
    """Say which stage it is that fails."""
    try:
        yield
    except Exception as error:
        raise WeftError(f"stage {stage} failed in its profile: {error}") from error


def ways_of(program: Program, stage: int, kinds: frozenset[Kind]) -> Iterator[Way]:
    """How the program runs a stage, and the ways that have what is asked for besides."""
    actions = program.actions
    present = {Kind(kind) for kind in actions.kind[actions.stage == stage].tolist()}
    backward = SPLIT if Kind.I in present else WHOLE
    own = tuple(kind for kind in (Kind.F, Kind.R, *backward[1:]) if kind in present)
    yield own
    known = set(own)
    for way in (WHOLE, SPLIT, AGAIN):
        if kinds.intersection(way) - known:
            known.update(way)
            yield way

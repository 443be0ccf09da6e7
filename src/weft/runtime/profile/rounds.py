"""Rounds: seconds of the actions of every stage, with all ranks at work.

In a round each rank runs each of its stages in each way, and nobody begins the next before all
have ended this one. So a rank is as busy, and as disturbed by the others, as in a pipeline.

    F B      a whole backward
    F I W    a split one
    F R B    recomputed: this F keeps only its inputs

Then gradients are summed and weights updated (`updates`).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor, nn

from weft.errors import WeftError
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.ir.versions import resident_versions
from weft.runtime.batch import cut
from weft.runtime.profile.sample import Sample, Watch
from weft.runtime.profile.trial import Trial, Way
from weft.runtime.profile.updates import TimedUpdates
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


@dataclass(slots=True)
class Found:
    """Of one stage: seconds by field of Times, and bytes by field of Memory."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    sizes: dict[str, float] = field(default_factory=dict)

    def add(self, timed: dict[str, list[float]]) -> None:
        """Take more seconds of the same stage."""
        for name, runs in timed.items():
            self.seconds.setdefault(name, []).extend(runs)


class Rounds:
    """The stages that this process holds, each in all the ways in which it is timed."""

    def __init__(
        self,
        updates: TimedUpdates,
        program: Program,
        sample: Sample,
        inputs: Sequence[Sequence[Value]],
        kinds: frozenset[Kind],
    ) -> None:
        self._updates, self._program, self._graph = updates, program, program.graph
        self._sample, held = sample, updates.modules
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
                others = [copy.deepcopy(module) for _ in ways[1:]]
                stashes = [updates.stashes(index), *(self._stashes(m, index) for m in others)]
                self._trials[index] = [
                    Trial(self._stage(one, index, way, own), way, inputs[index], in_flight)
                    for one, way, own in zip([module, *others], ways, stashes, strict=True)
                ]

    def run(self, world: World, rounds: int, watch: Watch) -> dict[int, Found]:
        """What all ranks find of all stages; every rank calls this."""
        found = {index: Found() for index in self._trials}
        for number in range(WARM_UP + rounds):
            world.gather(b"", "a round of timing")
            for index in self._trials:
                timed = self._timed(index)
                if number >= WARM_UP:
                    found[index].add(timed)
            world.gather(b"", "a round of updates")
            for index, timed in self._updates.run().items():
                if number >= WARM_UP:
                    found[index].add(timed)
            watch("stages", (number + 1) / (WARM_UP + rounds))
        for index, trials in self._trials.items():
            optimizer = {"optimizer": float(self._updates.state_bytes(index))}
            found[index].sizes = trials[0].sizes() | optimizer
        return _of_all_ranks(found, world)

    def _timed(self, index: int) -> dict[str, list[float]]:
        """Every action once; where two ways have it, the earlier one counts."""
        timed: dict[str, list[float]] = {}
        with _blamed(index):
            for trial in self._trials[index]:
                timed = trial.run() | timed
        return timed

    def _stage(self, module: nn.Module, index: int, way: Way, stashes: Sequence[Stash]) -> Stage:
        role = Role(
            index=index,
            is_first=not self._graph.predecessors[index],
            is_split=Kind.I in way,
            loss=None if self._graph.successors[index] else self._loss,
            stashes=stashes,
            is_stashing=self._program.is_stashing,
        )
        return Stage(module, Draw(), role)

    def _stashes(self, module: nn.Module, index: int) -> list[Stash]:
        """As a run would have them."""
        is_learning = any(weight.requires_grad for weight in module.parameters())
        if not is_asynchronous(self._program) or not is_learning:
            return []
        return [Stash(module.named_parameters(), resident_versions(self._program)[index])]

    def _loss(self, output: Any, _: int) -> Tensor:
        return self._sample.loss(output, *self._target.arguments)


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


def _of_all_ranks(found: dict[int, Found], world: World) -> dict[int, Found]:
    """Seconds of a stage that several ranks hold come one after the other."""
    share = json.dumps({index: asdict(one) for index, one in found.items()}).encode()
    together: dict[int, Found] = {}
    for text in world.gather(share, "the times of the stages"):
        for index, one in json.loads(text).items():
            stage = together.setdefault(int(index), Found(sizes=one["sizes"]))
            stage.add(one["seconds"])
    return together

"""Trials: a candidate simulated, with as much relief of its memory as makes it fit.

A long step is simulated with two small numbers of microbatches, a pipeline's depth apart: once a
schedule has settled, every further microbatch takes as long and holds as much as the ones before.

    T(n) and T(n + D)   ->   T(N) = T(n + D) + (N - n - D) (T(n + D) - T(n)) / D
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from weft.cost import Cost
from weft.ir.program import Program
from weft.lower import offload, overlapping
from weft.plan.bench import Bench, Ready
from weft.plan.chain import Chain, Layers, Values
from weft.plan.partition import balanced
from weft.plan.space import Candidate
from weft.simulate import simulate

FEW = 3  # times the depth of the pipeline: as many microbatches are simulated
ROOM = 1.5  # times that: a step that is not longer is simulated in full
MOST_ACTIONS = 150_000  # of a step that is simulated in full where that is asked for
COPYING = 10  # an action takes that many times as long where state is offloaded


@dataclass(frozen=True, slots=True)
class Ease:
    """What relieves the memory of devices.

    is_selective   norms and activation functions are computed again
    recomputed     stages whose forward runs again
    is_offloading  saved state goes to the host where there is time for it
    """

    is_selective: bool = False
    recomputed: frozenset[int] = frozenset()
    is_offloading: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """What a candidate comes to, cut like this and relieved like that.

    seconds  of a step, extrapolated where it is long
    busy     seconds of all devices of the pipeline together
    held     most bytes of each device
    is_full  whether every microbatch was simulated
    """

    candidate: Candidate
    layers: Layers
    ease: Ease
    seconds: float
    busy: float
    held: tuple[float, ...]
    is_full: bool

    @property
    def peak(self) -> float:
        return max(self.held)

    @property
    def order(self) -> tuple[float, float]:
        """Less is better."""
        return float(f"{self.seconds:.9g}"), self.peak


@dataclass(frozen=True)
class Trier:
    """A candidate that is being tried; in full, unless it is too long for that."""

    bench: Bench
    candidate: Candidate
    is_full: bool = False

    def chain(self, *, is_selective: bool = False) -> Chain:
        return self.bench.chain(
            self.candidate.division, is_selective=is_selective, pipes=self.candidate.pipes
        )

    @property
    def capacity(self) -> float:
        return self.chain().blocks.memory.capacity

    @property
    def lengths(self) -> tuple[int, ...]:
        """Microbatches that are simulated: all, or two small numbers of them."""
        shape, schedule = self.candidate.shape, self.candidate.schedule
        count, depth = shape.microbatches, shape.devices
        last = FEW * depth + count % depth
        few = (last - depth, last)
        most = MOST_ACTIONS // (3 * shape.stages) if self.is_full else int(ROOM * last)
        if count <= most or any(schedule.accepts(shape.but(microbatches=n)) for n in few):
            return (count,)
        return few

    @property
    def actions(self) -> int:
        """About as many are simulated in a trial."""
        return 3 * self.candidate.shape.stages * sum(self.lengths)

    @property
    def seed(self) -> Layers:
        """The cut that it is first tried with."""
        return balanced(self.chain(), self.candidate.shape.stages)

    def tried(self, layers: Layers, ease: Ease, chain: Chain | None = None) -> Trial:
        """What it comes to with this relief, whether or not it fits, by its own chain or this."""
        chain = chain or self.chain(is_selective=ease.is_selective)
        found = [self._timed(n, layers, ease, chain) for n in self.lengths]
        seconds, busy, *held = self._extrapolated(found).tolist()
        is_full = len(found) == 1
        return Trial(self.candidate, layers, ease, seconds, busy, tuple(held), is_full)

    def held(self, layers: Layers, ease: Ease) -> Values:
        """The peak of each device, by the order of its lane."""
        chain = self.chain(is_selective=ease.is_selective)
        found = [self.ready(n).holding.peaks(chain, layers, ease.recomputed) for n in self.lengths]
        return self._extrapolated(found)

    def gathering(self, layers: Layers) -> float:
        """At most as many seconds of a step are gathers of weights that copies have updated."""
        layout = self.candidate.division.layout
        if layout.copies == 1 or not layout.is_sharded:
            return 0.0
        placement = self.ready(self.lengths[0]).program.placement
        seconds = self.chain().sums(layers).reduce / 2
        return max(float(sum(seconds[stage] for _, stage in held)) for held in placement.held)

    def fitting(self, layers: Layers, ease: Ease) -> Ease | None:
        """The relief with as few stages recomputed as make it fit; None where all do not."""
        chain = self.chain(is_selective=ease.is_selective)
        placement, sums = self.ready(self.lengths[0]).program.placement, chain.sums(layers)
        gains = sums.saved - sums.inputs
        chosen: set[int] = set()
        for _ in range(placement.stages + 1):
            found = replace(ease, recomputed=frozenset(chosen))
            full = np.flatnonzero(self.held(layers, found) > self.capacity).tolist()
            if not full:
                return found
            for device in full:
                left = {stage for _, stage in placement.held[device]} - chosen
                left = {stage for stage in left if gains[stage] > 0}
                if not left:
                    return None
                chosen.add(max(left, key=lambda stage: (gains[stage], -stage)))
        return None

    def ready(self, microbatches: int) -> Ready:
        """The program with as many microbatches."""
        return self.bench.ready(self.candidate, microbatches)

    def _timed(self, microbatches: int, layers: Layers, ease: Ease, chain: Chain) -> Values:
        """Seconds and busy seconds of a step, and the peak of each device."""
        bench, ready = self.bench, self.ready(microbatches)
        if ready.clock.knows(chain) and not ease.is_offloading:
            bench.actions += len(ready.program)
            seconds, busy = ready.clock.measured(chain, layers, ease.recomputed)
            held = ready.holding.peaks(chain, layers, ease.recomputed)
            return np.array([seconds, busy, *held])
        step = ready.step(ease.recomputed)
        cost = chain.cost(step, layers)
        bench.actions += COPYING * len(step) if ease.is_offloading else len(step)
        timeline = bench.timed(_offloaded(step, cost) if ease.is_offloading else step, cost)
        busy = float(timeline.device_work.sum())
        return np.array([timeline.makespan, busy, *timeline.memory.peaks])

    def _extrapolated(self, found: list[Values]) -> Values:
        """What a step of all microbatches comes to, from what few do."""
        if len(found) == 1:
            return found[0]
        first, second = self.lengths
        more = (self.candidate.shape.microbatches - second) / (second - first)
        return np.asarray(found[1] + more * (found[1] - found[0]))


def _offloaded(step: Program, cost: Cost) -> Program:
    return offload(simulate(overlapping(step, cost), cost))


def eases(trier: Trier, layers: Layers) -> Iterator[Ease]:
    """Ways to make a candidate fit that does not, or the ones that were asked for."""
    choices = trier.bench.question.choices
    every = frozenset(range(trier.candidate.shape.stages))
    may_offload = choices.offload == "auto" and _has_host(trier)
    kinds = kinds_of_recompute(trier)
    for is_offloading, is_selective in product((False, True)[: 1 + may_offload], kinds):
        ease = Ease(is_selective, every if choices.recompute == "full" else frozenset())
        if choices.recompute != "auto" or is_offloading:
            yield replace(ease, is_offloading=is_offloading)
        elif (found := trier.fitting(layers, ease)) is not None:
            yield found


def kinds_of_recompute(trier: Trier) -> tuple[bool, ...]:
    """Whether recompute is selective: both where that is not decided and known what it saves."""
    question = trier.bench.question
    chosen = {"none": (False,), "full": (False,), "selective": (True,)}
    both = (False, True) if question.model is not None else (False,)
    return chosen.get(question.choices.recompute, both)


def _has_host(trier: Trier) -> bool:
    """Whether it is known how fast the host takes what is offloaded."""
    return bool(np.isfinite(trier.chain().blocks.network.host.bandwidth))

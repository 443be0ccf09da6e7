"""Candidates: plans of one batch that differ in all that a plan decides, good ones and bad ones.

Every plan has stages whose cost is the sum of its blocks, which were measured or are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from weft.cost import Cost, Layout
from weft.errors import WeftError
from weft.ir.program import Program
from weft.request import Passes, Plan
from weft.schedules import REGISTRY, Shape

SUMMED = ("weights", "gradients", "optimizer", "saved")


class Choice(NamedTuple):
    """What a plan is made of.

    moved  how many layers the first stage has beyond a fair cut, taken from the last ones
    """

    schedule: str
    rows: int  # of a microbatch
    moved: int = 0
    recompute: str | None = None
    replicas: int = 1
    stages: int = 1  # on a device

    def __str__(self) -> str:
        words = [self.schedule, f"{self.rows} rows"]
        words += [f"K={self.stages}"] * (self.stages > 1)
        words += [f"{self.moved} moved"] * (self.moved > 0)
        words += [f"recompute {self.recompute}"] * (self.recompute is not None)
        return ", ".join(words + [f"{self.replicas} replicas"] * (self.replicas > 1))


STAGES = {  # on a device, of the schedules that are tried
    "1f1b": 1,
    "gpipe": 1,
    "naive": 1,
    "zb-h1": 1,
    "zb-h2": 1,
    "interleaved-1f1b": 2,
    "zbv": 2,
    "v-half": 2,
    "v-min": 2,
}


class Work(NamedTuple):
    """What all plans train in a step, on as many ranks, with microbatches of these rows."""

    ranks: int
    rows: int
    sizes: tuple[int, ...] = (1, 2, 4)
    replicas: tuple[int, ...] = (1,)


class Candidate(NamedTuple):
    """A choice with its program, and the layers of its stages."""

    choice: Choice
    program: Program
    layers: tuple[int, ...]

    def plan(self, blocks: Cost) -> Plan:
        """The plan, where the blocks of its microbatches cost this."""
        return Plan(
            program=self.program,
            layout=Layout(layers=self.layers, replicas=self.choice.replicas, is_sharded=False),
            cost=staged(blocks, self.layers),
            passes=Passes(recompute=self.choice.recompute),
            source=str(self.choice),
        )

    def seconds(self, blocks: Cost) -> float:
        return self.plan(blocks).prediction().seconds


def candidates(work: Work, blocks: Mapping[int, Cost]) -> Iterator[Candidate]:
    """All that there is to choose from; `blocks` are the costs of blocks by rows."""
    for (schedule, stages), rows, moved, recompute, replicas in product(
        STAGES.items(), work.sizes, (0, 1, 2), (None, "all"), work.replicas
    ):
        choice = Choice(schedule, rows, moved, recompute, replicas, stages)
        shape = Shape(
            devices=work.ranks // replicas,
            microbatches=work.rows // (rows * replicas),
            stages_per_device=stages,
        )
        with suppress(WeftError, ValueError):  # of shapes that a schedule does not take
            program = REGISTRY[schedule].program(shape)
            layers = fair(blocks[rows], program.stages)
            for _ in range(moved):
                layers = skewed(layers)
            yield Candidate(choice, program, layers)


def spread(
    found: Sequence[Candidate], blocks: Mapping[int, Cost], count: int, most: float
) -> list[Candidate]:
    """As many, evenly spread over predicted time, from the best up to so many times that.

    Of those that are about as good for a place, the schedule that was taken least often.
    """
    seconds = {one: one.seconds(blocks[one.choice.rows]) for one in found}
    best = min(found, key=seconds.__getitem__)
    taken = [best]
    for place in np.geomspace(1.0, most, count)[1:]:
        wanted = seconds[best] * place
        used = Counter(one.choice.schedule for one in taken)
        others = [one for one in found if one not in taken]
        near = sorted(others, key=lambda one: abs(np.log(seconds[one] / wanted)))[:8]
        taken.append(min(near, key=lambda one: used[one.choice.schedule]))
    return sorted(taken, key=seconds.__getitem__)


def averaged(costs: Sequence[Cost]) -> Cost:
    """The medians of costs that were measured one after the other."""
    times = costs[0].times
    columns = {
        name: [getattr(cost.times, name) for cost in costs] for name in times.__dataclass_fields__
    }
    medians = {
        name: None if found[0] is None else tuple(np.median(found, axis=0).tolist())
        for name, found in columns.items()
    }
    return replace(costs[0], times=replace(times, **medians))


def skewed(layers: tuple[int, ...]) -> tuple[int, ...]:
    """With one layer of the last stage, or of the one before it, on the first."""
    taken = max(stage for stage, count in enumerate(layers) if count > 1)
    found = [*layers]
    found[0] += 1
    found[taken] -= 1
    return tuple(found)


def fair(blocks: Cost, stages: int) -> tuple[int, ...]:
    """Layers of stages of which the longest is as short as can be; of those, the most even."""
    seconds = np.sum([blocks.times.forward, blocks.times.input_grad, blocks.times.weight_grad], 0)
    seconds[1] += seconds[0]
    seconds[-2] += seconds[-1]
    layers = seconds[1:-1]
    total = np.concatenate([[0.0], np.cumsum(layers)])
    best = {(0, 0): ((0.0, 0.0), ())}  # by layers and stages: the longest, squares, the counts
    for stage in range(1, stages + 1):
        for end in range(stage, len(layers) - (stages - stage) + 1):
            best[end, stage] = min(
                _longer(best[start, stage - 1], float(total[end] - total[start]), end - start)
                for start in range(stage - 1, end)
                if (start, stage - 1) in best
            )
    return best[len(layers), stages][1]


def _longer(known: Any, seconds: float, layers: int) -> Any:
    (longest, squares), counts = known
    return (max(longest, seconds), squares + seconds**2), (*counts, layers)


def staged(blocks: Cost, layers: Sequence[int]) -> Cost:
    """The cost of stages that have these layers: what their blocks take, one after the other."""
    sizes = [*layers]
    sizes[0] += 1
    sizes[-1] += 1
    firsts = np.cumsum([0, *sizes[:-1]])

    def summed(column: Any) -> Any:
        return None if column is None else tuple(np.add.reduceat(column, firsts).tolist())

    times, memory = blocks.times, blocks.memory
    message = blocks.network.sizes(blocks.stages - 1)[firsts[1:] - 1]
    return replace(
        blocks,
        times=replace(
            times, **{name: summed(getattr(times, name)) for name in times.__dataclass_fields__}
        ),
        memory=replace(
            memory,
            **{name: summed(getattr(memory, name)) for name in SUMMED},
            inputs=tuple(np.array(memory.inputs)[firsts].tolist()),
            scratch=None,
        ),
        network=replace(blocks.network, message=tuple(message.tolist())),
        parts={},
        provenance={name: tuple(np.array(m)[firsts]) for name, m in blocks.provenance.items()},
        measurement=None,
    )

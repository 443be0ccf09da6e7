"""Costs: what was found in a profile, as the one figure for each that a simulation needs."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from statistics import median

import numpy as np
import torch

from weft.cost import Cost, Measurement, Memory, PerStage, Provenance, Times
from weft.cost.cost import Parts
from weft.cost.measurement import Average
from weft.ir.program import Program
from weft.runtime.profile.found import Found
from weft.runtime.profile.hops import HopTimes
from weft.runtime.profile.machine import machine
from weft.runtime.profile.parts import shares_of
from weft.runtime.profile.rests import trimmed_mean

TIMES = tuple(field.name for field in fields(Times) if field.name != "close")
AVERAGES: Mapping[Average, Callable[[list[float]], float]] = {
    Average.MEDIAN: median,
    Average.MEAN: trimmed_mean,
}
SIZES = ("weights", "gradients", "optimizer", "saved", "inputs", "scratch")


@dataclass(frozen=True, slots=True)
class Findings:
    """All that was measured of a program.

    ranks     processes that took part
    passed    what messages took
    messages  bytes that cross each edge of the graph
    overhead  seconds between two actions of a device
    stages    what was found of each stage
    average   of all seconds of the same
    """

    program: Program
    ranks: int
    passed: HopTimes
    messages: tuple[float, ...]
    overhead: float
    stages: Mapping[int, Found]
    average: Average = Average.MEDIAN

    def cost(self, *, device: torch.device, transport: str) -> Cost:
        """The cost of the program on such a device, with messages through that transport."""
        stages = self.program.stages
        return Cost(
            times=self._times(),
            memory=Memory(**self._all_bytes()),  # type: ignore[arg-type]
            network=self.passed.network(self.messages),
            parts=self._parts(),
            overhead=self.overhead,
            provenance=dict.fromkeys(
                ("forward", "input_grad", "weight_grad", "recompute", "update", "network"),
                (Provenance.MEASURED,) * stages,
            )
            | {"reduce": tuple(map(_mark_of_reduce, self._found))},
            measurement=Measurement(
                date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                machine=machine(device),
                ranks=self.ranks,
                transport=transport,
                rounds=min(len(runs) for found in self._found for runs in found.seconds.values()),
                average=self.average,
                spread={name: self._spread(name) for name in TIMES if self._has(name)},
                hops=self.passed.slowest.seconds,
                r_squared=self.passed.slowest.fit.r_squared,
            ),
        )

    def _times(self) -> Times:
        """Where only the whole backward was timed, half of it for each gradient."""
        forward, whole = self._usual("forward"), self._usual("backward")
        half = tuple(seconds / 2 for seconds in whole)
        is_both = all({"backward", "input_grad"} <= set(one.seconds) for one in self._found)
        return Times(
            forward=forward,
            input_grad=self._usual("input_grad", half),
            weight_grad=self._usual("weight_grad", half),
            recompute=self._usual("recompute", forward),
            update=self._usual("update"),
            reduce=self._usual("reduce"),
            backward=whole if is_both else None,
            close=self._usual("close"),
            gather=self._usual("gather") if self._has("gather") else None,
        )

    def _parts(self) -> dict[str, Parts]:
        """The shares of the parts of each stage, where stages were cut into them."""
        each = [shares_of(found) for found in self._found]
        known = [kind for kind in "FI" if all(kind in shares for shares in each)]
        return {kind: tuple(shares[kind] for shares in each) for kind in known}

    @property
    def _found(self) -> list[Found]:
        """Of every stage, in order."""
        return [self.stages[stage] for stage in range(self.program.stages)]

    def _usual(self, name: str, otherwise: PerStage | None = None) -> PerStage:
        """Of each stage, or what stands for it where nothing was timed."""
        rest = otherwise or (0.0,) * self.program.stages
        return tuple(
            AVERAGES[self.average](found.seconds[name]) if name in found.seconds else other
            for found, other in zip(self._found, rest, strict=True)
        )

    def _spread(self, name: str) -> PerStage:
        """Interquartile ranges over the median."""
        quartiles = [np.quantile(found.seconds[name], (0.25, 0.5, 0.75)) for found in self._found]
        return tuple(float((high - low) / (middle or 1.0)) for low, middle, high in quartiles)

    def _all_bytes(self) -> dict[str, PerStage]:
        """By field of Memory; scratch only where it was measured of all stages."""
        found = {name: tuple(one.sizes.get(name, 0.0) for one in self._found) for name in SIZES}
        if not all("scratch" in one.sizes for one in self._found):
            del found["scratch"]
        return found

    def _has(self, name: str) -> bool:
        """Whether all stages were timed in this."""
        return all(name in found.seconds for found in self._found)


def _mark_of_reduce(found: Found) -> Provenance:
    """A stage without copies has nothing to sum, which nobody had to measure."""
    return Provenance.MEASURED if "reduce" in found.seconds else Provenance.DERIVED

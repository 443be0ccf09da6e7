"""Shares: costs of equal devices, the unit costs that most comparisons are made with."""

from __future__ import annotations

from dataclasses import dataclass

from weft.cost.cost import Cost, Link, Memory, Network, PerStage, Shares, Times, sizes_of_parts
from weft.errors import InputError
from weft.ir.graph import Backward, Graph
from weft.ir.program import Program


@dataclass(frozen=True, slots=True)
class Share:
    """Costs of one device's share of the model, spread evenly over its stages.

    latency  of a message between devices
    message  the size of one
    """

    forward: float = 1.0
    input_grad: float = 1.0
    weight_grad: float = 1.0
    pair: float | None = None
    latency: float = 0.0
    message: float = 0.0

    @property
    def backward(self) -> float:
        """Of a whole backward: both gradients together."""
        return self.input_grad + self.weight_grad

    def cost(self, program: Program) -> Cost:
        """The cost of a program whose devices have equal shares: unit costs by default."""
        graph = program.graph
        share = program.placement.share
        weights = [share * stage.cost for stage in graph.stages]
        learns = [stage.backward is Backward.FULL for stage in graph.stages]
        forward = _scaled(self.forward, weights)
        weight_grad = tuple(
            self.weight_grad * w if is_full else 0.0
            for w, is_full in zip(weights, learns, strict=True)
        )
        return Cost(
            times=Times(
                forward=forward,
                input_grad=_scaled(self.input_grad, weights),
                weight_grad=weight_grad,
                recompute=forward,
                update=_zeros(graph),
                reduce=_zeros(graph),
            ),
            memory=Memory(
                weights=(share,) * len(graph),
                gradients=_zeros(graph),
                optimizer=_zeros(graph),
                saved=(share,) * len(graph),
                inputs=_zeros(graph),
            ),
            network=Network(
                message=(self.message,) * len(graph.edges), default=Link(latency=self.latency)
            ),
            pairs=self._pairs(),
            parts=self._parts(),
            sizes=sizes_of_parts(program),
        )

    def _parts(self) -> dict[str, Shares]:
        """What a pair saves is communication, half of it in F, half in I; the rest is computed."""
        if self.pair is None:
            return {}
        hidden = max(0.0, self.forward + self.backward - self.pair) / 2
        parts = {}
        for kind, seconds in (("F", self.forward), ("I", self.input_grad)):
            moved = min(1.0, hidden / seconds) / 2
            parts[kind] = (0.5 - moved, moved, 0.5 - moved, moved)
        return parts

    def _pairs(self) -> dict[str, float]:
        """What overlapping saves in a pair of F and B, it saves in every pair: each hides the
        other's communication, which is as long forward as backward."""
        if self.pair is None:
            return {}
        saved = self.forward + self.backward - self.pair
        seconds = {"F": self.forward, "B": self.backward, "I": self.input_grad}
        if min(seconds.values()) <= 0:
            raise InputError("a pair costs time only where forward and backward do")
        return {
            kinds: max(0.0, 1 - saved / sum(seconds[kind] for kind in kinds))
            for kinds in ("BF", "FI", "FF", "BB", "II")
        }


def _scaled(value: float, weights: list[float]) -> PerStage:
    return tuple(value * weight for weight in weights)


def _zeros(graph: Graph) -> PerStage:
    return (0.0,) * len(graph)

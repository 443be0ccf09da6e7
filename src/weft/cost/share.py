"""Shares: costs of equal devices, the unit costs that most comparisons are made with."""

from __future__ import annotations

from dataclasses import dataclass

from weft.cost.cost import Cost, Link, Memory, Network, PerStage, Times
from weft.errors import InputError
from weft.ir.graph import Backward, Graph
from weft.ir.program import Program


@dataclass(frozen=True, slots=True)
class Share:
    """Costs of one device's share of the model, spread evenly over its stages."""

    forward: float = 1.0
    input_grad: float = 1.0
    weight_grad: float = 1.0
    pair: float | None = None
    lag: float = 0.0

    @property
    def backward(self) -> float:
        return self.input_grad + self.weight_grad

    def cost(self, program: Program) -> Cost:
        """The cost of a program whose devices have equal shares: unit costs by default."""
        graph = program.graph
        share = program.devices / len(graph)
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
            network=Network(message=(0.0,) * len(graph.edges), default=Link(latency=self.lag)),
            pairs=self._pairs(),
            sizes=(1 / program.parts,) * program.microbatches if program.parts > 1 else (),
        )

    def _pairs(self) -> dict[str, float]:
        if self.pair is None:
            return {}
        both = self.forward + self.backward
        if both <= 0:
            raise InputError("a pair costs time only where forward and backward do")
        return {"BF": self.pair / both}


def _scaled(value: float, weights: list[float]) -> PerStage:
    return tuple(value * weight for weight in weights)


def _zeros(graph: Graph) -> PerStage:
    return (0.0,) * len(graph)

"""Balanced stages: as many layers on each as make the longest stage the shortest it can be.

Embedding and head are counted, so that the last stage of a large vocabulary has fewer layers. A
schedule that cuts the model into more stages has another cut.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from weft.cost import Cost, Derivation, derive
from weft.ir.program import Program
from weft.plan.blocks import derived
from weft.plan.partition import balanced


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedDerivation(Derivation):
    """What a cost is derived from, with the layers of every stage by their time."""

    def cost(self, program: Program) -> Cost:
        """What the program costs."""
        pipes = len(program.placement.pipes)
        layers = _layers(self, program.devices, pipes, program.stages)
        layout = replace(self.layout, layers=layers)
        return derive(program, self.model, self.device, layout, self.storage)


@lru_cache(maxsize=64)
def _layers(derivation: Derivation, devices: int, pipes: int, stages: int) -> tuple[int, ...]:
    return balanced(derived(derivation, devices, pipes=pipes), stages)

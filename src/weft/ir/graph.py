"""Graph: the stages of a model and the edges between them.

A chain by default, a DAG where the model branches. Stages are numbered in model order, so
every edge points from a lower number to a higher one. Knows nothing of devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import pairwise

from weft.errors import InputError


class Backward(Enum):
    """How much of a backward pass a stage needs."""

    FULL = "full"
    INPUT = "input"  # frozen weights: gradients flow through, no W
    NONE = "none"  # frozen, and nothing before it learns


@dataclass(frozen=True, slots=True)
class Stage:
    """A slice of the model: its relative cost, what backward it needs, what batch it sees."""

    name: str = ""
    cost: float = 1.0
    backward: Backward = Backward.FULL
    is_whole_batch: bool = False  # one action over all microbatches, as a contrastive loss needs

    @property
    def is_learning(self) -> bool:
        """Whether gradients reach it, for its own weights or for those before it."""
        return self.backward is not Backward.NONE


@dataclass(frozen=True)
class Graph:
    """Stages and edges (source, destination); gradients flow against the edges.

    No gradient comes back along those of `fixed`: what they carry, such as a mask, has none.
    """

    stages: tuple[Stage, ...]
    edges: tuple[tuple[int, int], ...]
    name: str = field(default="", compare=False)
    fixed: frozenset[tuple[int, int]] = frozenset()

    def __post_init__(self) -> None:
        if not self.stages:
            raise InputError("a graph needs at least one stage")
        for edge in self.edges:
            check_edge(edge, len(self.stages))
        if len(set(self.edges)) != len(self.edges):
            raise InputError("an edge is listed twice; one edge carries all its tensors")
        if not self.fixed <= {*self.edges}:
            raise InputError(f"{min(self.fixed - {*self.edges})} is fixed and not an edge")
        pairs = zip(self.edges, self.is_returned, strict=True)
        returning = {source for (source, _), is_returned in pairs if is_returned}
        for stage, others in enumerate(self.successors):
            if others and self.stages[stage].is_learning and stage not in returning:
                raise InputError(
                    f"stage {stage} gets no gradient: every stage after it has backward=none, or"
                    f" the edge to it is fixed. Give it backward=none too, or one of them"
                    f" backward=input"
                )

    @classmethod
    def chain(cls, stages: int) -> Graph:
        """Stage 0 -> 1 -> ... -> stages - 1."""
        edges = tuple((stage, stage + 1) for stage in range(stages - 1))
        return cls((Stage(),) * stages, edges, name=f"chain:{stages}")

    @classmethod
    def two_tower(cls, depth: int) -> Graph:
        """Two chains of `depth` stages each, and a stage that joins them."""
        if depth < 1:
            raise InputError(f"two-tower:{depth}: a tower has at least 1 stage")
        join = 2 * depth
        towers = [range(depth), range(depth, join)]
        edges = [edge for tower in towers for edge in pairwise(tower)]
        edges += [(tower[-1], join) for tower in towers]
        return cls((Stage(),) * (join + 1), tuple(sorted(edges)), name=f"two-tower:{depth}")

    @classmethod
    def inception(cls, branches: int = 4) -> Graph:
        """A stem, parallel branches and a head."""
        head = branches + 1
        edges = [(0, branch) for branch in range(1, head)]
        edges += [(branch, head) for branch in range(1, head)]
        return cls((Stage(),) * (head + 1), tuple(edges), name="inception")

    def __len__(self) -> int:
        return len(self.stages)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For each stage, the stages whose activations it reads."""
        return _neighbours(len(self), [(d, s) for s, d in self.edges])

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """For each stage, the stages whose gradients it reads."""
        return _neighbours(len(self), self.edges)

    @cached_property
    def is_returned(self) -> tuple[bool, ...]:
        """For each edge, whether the stage at its end has a gradient for it."""
        return tuple(
            self.stages[edge[1]].is_learning and edge not in self.fixed for edge in self.edges
        )

    @cached_property
    def heights(self) -> tuple[int, ...]:
        """For each stage, the edges on its longest path to a sink."""
        heights = [0] * len(self)
        for stage in reversed(range(len(self))):
            heights[stage] = max((heights[s] + 1 for s in self.successors[stage]), default=0)
        return tuple(heights)

    @cached_property
    def is_chain(self) -> bool:
        """Whether each stage reads the one before it, and gradients come back all the way."""
        is_straight = self.edges == tuple((stage, stage + 1) for stage in range(len(self) - 1))
        return is_straight and not self.fixed


def check_edge(edge: tuple[int, int], stages: int) -> None:
    """Refuse an edge that goes nowhere or against the model's order."""
    source, destination = edge
    if not 0 <= source < destination < stages:
        raise InputError(
            f"edge {source} -> {destination}: stages are numbered in model order,"
            f" so an edge goes from a lower to a higher number below {stages}"
        )


def _neighbours(stages: int, pairs: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    found: list[list[int]] = [[] for _ in range(stages)]
    for stage, other in pairs:
        found[stage].append(other)
    return tuple(tuple(sorted(others)) for others in found)

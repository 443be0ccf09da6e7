"""Models that branch: values with several readers, towers that meet, parts that do not learn."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.runtime.exactness import differences
from tests.runtime.models import WIDTH, batches
from tests.runtime.ranks import over_transports
from weft.ir.graph import Backward, Graph, Stage
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.schedules import REGISTRY, Shape

LEARNING, FROZEN, CUT = Stage(), Stage(backward=Backward.INPUT), Stage(backward=Backward.NONE)


class Join(nn.Module):
    """Reads any number of values."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.line = nn.Linear(count * WIDTH, WIDTH)

    def forward(self, *values: Tensor) -> Tensor:
        out: Tensor = self.line(torch.cat(values, dim=-1))
        return out


def modules(graph: Graph) -> list[nn.Module]:
    """A layer for each stage; those that do not learn are frozen."""
    torch.manual_seed(0)
    made = [Join(max(1, len(before))) for before in graph.predecessors]
    for stage, module in zip(graph.stages, made, strict=True):
        module.requires_grad_(stage.backward is Backward.FULL)
    return [*made]


GRAPHS = {
    "two towers": Graph.two_tower(1),
    "a value with two readers": Graph((LEARNING,) * 4, ((0, 1), (0, 2), (1, 3), (2, 3))),
    "a skip": Graph((LEARNING,) * 4, ((0, 1), (0, 3), (1, 2), (2, 3))),
    "a frozen middle": Graph((LEARNING, FROZEN, LEARNING), ((0, 1), (1, 2))),
    "a frozen start": Graph((CUT, CUT, LEARNING, LEARNING), ((0, 1), (1, 2), (2, 3))),
    "a frozen tower": Graph((CUT, LEARNING, LEARNING), ((0, 2), (1, 2))),
}


def programs(graph: Graph) -> list[Program]:
    """On two devices, which take the stages in turn."""
    placement = Placement((tuple(stage % 2 for stage in range(len(graph.stages))),))
    shape = Shape.of_graph(graph, placement, microbatches=4)
    return [REGISTRY[name].program(shape) for name in ("gpipe", "1f1b")]


def differences_by_graph(transport: str = "auto") -> dict[str, list[str]]:
    """What differs from the reference."""
    return {
        f"{name} {program.name}": found
        for name, graph in GRAPHS.items()
        for program in programs(graph)
        if (found := differences(modules(graph), program, batches(11, 2), transport=transport))
    }


def test_branches_are_exact() -> None:
    assert differences_by_graph() == {}


def test_branches_on_ranks() -> None:
    assert over_transports(2, differences_by_graph) == [[{}] * 2] * 2

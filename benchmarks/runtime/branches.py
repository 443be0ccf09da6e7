"""Branches beside each other, against the same model as a chain.

    python benchmarks/runtime/branches.py [--microbatches 8 32] [--json FILE]

A stage sleeps 5 ms in F and 10 ms in B, and has a rank of its own. As a chain, which is all that
most frameworks have, a branch waits for the one before it, and values pass through stages that do
not read them. As a graph, branches work at the same time. In each round both take a step, in the
same processes, after a step in which they gave the same gradients.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any, NamedTuple

import torch
from bench import Row, Watch, estimate, median, parsed, reported, run
from contenders import Contender, Turn, _check_close, clear, rounds, step_seconds, timed
from torch import Tensor

import weft
from weft.ir.graph import Graph
from weft.ir.program import Program
from weft.runtime.stage.calling import Piece
from weft.schedules import REGISTRY, Shape, one_f_one_b
from weft.simulate import simulate

NAP = 5e-3
FORM = (4, 64)  # of a microbatch
GRAPHS = {"two-tower:2": Graph.two_tower(2), "inception": Graph.inception()}
COLUMNS = ("chain ms", "graph ms", "speed-up", "speed-up of the ideals")


class Branching(NamedTuple):
    """What one row of a table is about."""

    graph: str
    ranks: int
    microbatches: int

    refusal = ""

    @property
    def edges(self) -> Graph:
        return GRAPHS[self.graph]

    @property
    def program(self) -> Program:
        shape = Shape.of_graph(self.edges, microbatches=self.microbatches)
        return REGISTRY["1f1b"].program(shape)

    @property
    def chain(self) -> Program:
        return one_f_one_b(devices=self.ranks, microbatches=self.microbatches)


class Sleeping(Piece):
    """Adds a weight to the sum of what it reads; what it was given goes on, for other readers."""

    def __init__(self, stage: int, graph: Graph) -> None:
        self._own, self._is_last = f"value{stage}", not graph.successors[stage]
        self._read = [f"value{other}" for other in graph.predecessors[stage]] or ["batch"]
        super().__init__(("batch", *(f"value{other}" for other in range(stage))), self._own)
        self.weight = torch.nn.Parameter(torch.full(FORM[-1:], 0.1 * stage))

    def forward(self, **given: Tensor) -> Any:
        out = _Nap.apply(sum(given[name] for name in self._read) + self.weight)
        return out if self._is_last else {**given, self._own: out}


class _Nap(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: Tensor) -> Tensor:
        time.sleep(NAP)
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        time.sleep(2 * NAP)
        return gradient.clone()


def stages(setting: Branching, *, is_chain: bool) -> weft.Stages:
    graph = setting.edges
    made = [Sleeping(stage, graph) for stage in range(len(graph))]
    if is_chain:
        return weft.Stages(made)
    return weft.Stages(
        made, graph=graph, carries={edge: (f"value{edge[0]}",) for edge in graph.edges}
    )


def job(setting: Branching, arguments: argparse.Namespace, tell: Watch) -> dict[str, Any]:
    """In a rank: the chain and the graph in turn."""
    torch.manual_seed(0)
    batch, target = torch.randn(2, setting.microbatches * FORM[0], FORM[1])
    turns: dict[str, Turn] = {}
    contenders = []
    for name, program in (("chain", setting.chain), ("graph", setting.program)):
        pipeline = weft.Pipeline(
            stages(setting, is_chain=name == "chain"),
            program,
            loss=torch.nn.functional.mse_loss,
            transport=arguments.transport,
        )
        step = partial(pipeline.step, {"batch": batch}, target, update=False)
        contender = Contender(step, pipeline.modules)
        contender.step()
        contenders.append(contender)
        turns[name] = partial(timed, contender)
    one, other = contenders
    for place, module in one.modules.items():
        _check_close(module.weight.grad, other.modules[place].weight.grad)  # type: ignore[arg-type]
    for contender in contenders:
        clear(contender)
    return rounds(turns, arguments.steps, tell)


def row(arguments: argparse.Namespace, setting: Branching, watch: Watch) -> Row:
    by_rank = run(job, setting, arguments, watch)  # type: ignore[arg-type]
    chain, graph = (step_seconds(by_rank, name) for name in ("chain", "graph"))
    gain = estimate(lambda one, other: one / other, chain, graph)
    ideal = simulate(setting.chain).makespan / simulate(setting.program).makespan
    facts = {"gain": gain, "ideal": ideal, "chain": chain.tolist(), "graph": graph.tolist()}
    cells = [median(chain).shown(1e3, 1), median(graph).shown(1e3, 1), gain.shown(), f"{ideal:.2f}"]
    return Row(cells, facts)


if __name__ == "__main__":
    given = parsed(__doc__, ranks=(0,), microbatches=(8, 32), schedules=("1f1b",))
    rows = [
        Branching(name, len(graph), microbatches)
        for name, graph in GRAPHS.items()
        for microbatches in given.microbatches
    ]
    reported(given, COLUMNS, rows, partial(row, given))  # type: ignore[arg-type]

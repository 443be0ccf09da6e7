"""Edges: a program over the graph that a model really has.

A schedule of a chain runs any model whose stages are numbered in its order: that stage 3 also reads
what stage 1 returns adds a message and no wait, as 1 comes before 3 anyway.
"""

from __future__ import annotations

from dataclasses import replace

from weft.errors import InputError
from weft.ir.graph import Graph
from weft.ir.program import Program
from weft.lower.whole import whole
from weft.lower.wires import unwired


def over(program: Program, graph: Graph) -> Program:
    """The same order of computations, with the edges of a model's own graph.

    Stages that take the whole batch in the model do so in the program.
    """
    if len(graph) == program.stages:
        program = whole(program, [k for k, one in enumerate(graph.stages) if one.is_whole_batch])
    if program.graph.edges == graph.edges and program.graph.fixed == graph.fixed:
        return program
    if len(graph) != program.stages:
        raise InputError(
            f"{program.name} has {program.stages} stages and the model {len(graph)}: make both of"
            f" as many"
        )
    if not program.graph.is_chain and {*program.graph.edges} != {*graph.edges}:
        raise InputError(
            f"{program.name} is for a graph with other edges than the model has; make it for the"
            f" graph of the stages (graph=stages.graph)"
        )
    stages = program.graph.stages
    return replace(unwired(program), graph=Graph(stages, graph.edges, fixed=graph.fixed))

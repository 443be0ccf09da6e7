"""What graph-capable schedules share: the graph of a shape, and stages that share a device."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from math import inf

import numpy as np

from weft.cost import Share
from weft.ir.graph import Graph
from weft.ir.kinds import Kind
from weft.ir.placement import Placement
from weft.ir.program import Content, Program
from weft.schedules.kit.shape import Shape


def graph_of(shape: Shape) -> Graph:
    """The graph that was asked for, or a chain."""
    return shape.graph or Graph.chain(shape.devices)


def on_devices(name: str, graph: Graph, lanes: Sequence[Content], shape: Shape) -> Program:
    """A program from one lane per stage; stages that share a device are merged."""
    program = Program.build(
        name,
        Placement.straight(len(graph)),
        lanes,
        microbatches=shape.microbatches,
        graph=graph,
    )
    return _merged(program, shape.placement) if shape.placement else program


def _merged(program: Program, placement: Placement) -> Program:
    """List scheduling: whichever stage's next slot can start first is next on its device.

    Times are unit costs; ties go to backwards, then to the oldest microbatch.
    """
    actions, first = program.actions, program.first_of_slot
    durations = Share().cost(program).durations(program).tolist()
    precedence = program.precedence(np.zeros(len(program.dependencies)))
    reads: list[list[int]] = [[] for _ in first]
    for consumer, producer in zip(precedence.consumer, precedence.producer, strict=True):
        if consumer != producer:
            reads[consumer].append(int(producer))
    bounds = [*first.tolist(), len(program)]
    queues = [deque(range(*lane)) for lane in pairwise(precedence.bounds.tolist())]
    ends: dict[int, float] = {}
    clock = [0.0] * placement.devices
    lanes: list[list[int]] = [[] for _ in clock]

    def rank(stage: int) -> tuple[float, bool, int, int]:
        slot = queues[stage][0]
        arrival = max((ends.get(producer, inf) for producer in reads[slot]), default=0.0)
        start = max(arrival, clock[placement.pipes[0][stage]])
        row = int(first[slot])
        return start, int(actions.kind[row]) == Kind.F, int(actions.microbatch[row]), stage

    while any(queues):
        start, _, _, stage = min(rank(stage) for stage, queue in enumerate(queues) if queue)
        slot, device = queues[stage].popleft(), placement.pipes[0][stage]
        ends[slot] = clock[device] = start + durations[slot]
        lanes[device] += range(*bounds[slot : slot + 2])
    return Program.build(
        program.name,
        placement,
        [actions.take(np.array(rows, np.int64)) for rows in lanes],
        microbatches=program.microbatches,
        graph=program.graph,
    )

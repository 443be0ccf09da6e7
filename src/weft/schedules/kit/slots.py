"""A program in slots: every action takes one, so that an order can be made or mended by moving.

Slots order lanes; they are not times. Knows programs without pairs and without wires.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from weft.ir.kinds import Kind
from weft.ir.program import Program

# F keeps a stage's activation from its slot on, B or W until the end of theirs.
_HOLDS = {Kind.F: 1, Kind.B: -1, Kind.W: -1}


@dataclass(frozen=True, slots=True)
class Constraints:
    """For each action of a program, what ties it to a slot.

    `holds` counts stage activations: what the action takes, or gives back where negative.
    """

    device: list[int]
    reads: list[list[int]]
    readers: list[list[int]]
    holds: list[int]


def constraints(program: Program) -> Constraints:
    """What an order of the program's actions must respect."""
    actions, dependencies = program.actions, program.dependencies
    reads: list[list[int]] = [[] for _ in range(len(actions))]
    readers: list[list[int]] = [[] for _ in range(len(actions))]
    pairs = zip(dependencies.consumer.tolist(), dependencies.producer.tolist(), strict=True)
    for consumer, producer in pairs:
        reads[consumer].append(producer)
        readers[producer].append(consumer)
    sign = np.array([_HOLDS.get(kind, 0) for kind in Kind])
    return Constraints(
        device=program.device_of.tolist(),
        reads=reads,
        readers=readers,
        holds=(sign[actions.kind] * actions.span).tolist(),
    )


def activations(program: Program, peak: float) -> int:
    """How many stage activations a peak of that many microbatches is."""
    return int(peak * program.stages / program.devices)


def in_slots(program: Program, slots: list[int]) -> Program:
    """The program with every lane in the order of its actions' slots."""
    order = np.lexsort((np.array(slots), program.lane_of))
    contents = (order[first:last] for first, last in pairwise(program.bounds.tolist()))
    lanes = zip(program.lanes, map(program.actions.take, contents), strict=True)
    return program.with_lanes(dict(lanes))

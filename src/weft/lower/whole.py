"""Whole batches: a stage, such as one with a contrastive loss, that takes all microbatches at once.

    F0 F1 F2 F3 | B0 B1 B2 B3      becomes      F0-3 | B0-3

Where a backward of the stage comes before its last forward, as in 1f1b, no order would do: the
actions stay as they are, and the verifier says which of them cannot be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from weft.ir.actions import Actions
from weft.ir.graph import Graph
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.lower.pairs import unpaired
from weft.lower.wires import unwired


def whole(program: Program, stages: Iterable[int]) -> Program:
    """The same program with stages that take the whole batch at once."""
    chosen = {stage for stage in stages if not program.graph.stages[stage].is_whole_batch}
    if not chosen:
        return program
    plain, graph = unwired(unpaired(program)), program.graph
    marked = tuple(
        replace(stage, is_whole_batch=stage.is_whole_batch or index in chosen)
        for index, stage in enumerate(graph.stages)
    )
    lanes = plain.contents()
    for stage in sorted(chosen):
        lanes = {lane: _joined(actions, stage) for lane, actions in lanes.items()}
    made = plain.with_lanes(lanes) if plain.period is None else plain
    return replace(made, graph=Graph(marked, graph.edges, graph.name, graph.fixed))


def _joined(actions: Actions, stage: int) -> Actions:
    """One action of each kind in place of a stage's many: the last forward, the first backward."""
    is_own = (actions.stage == stage) & (actions.kind <= Kind.R)
    forwards = np.flatnonzero(is_own & (actions.kind == Kind.F))
    others = np.flatnonzero(is_own & (actions.kind != Kind.F))
    if not len(forwards) or (len(others) and others[0] < forwards[-1]):
        return actions
    kept = ~is_own
    count = int(actions.span[forwards].sum())
    microbatch, span = actions.microbatch.copy(), actions.span.copy()
    for kind in (Kind.F, Kind.R, Kind.B, Kind.I, Kind.W):
        rows = np.flatnonzero(is_own & (actions.kind == kind))
        if len(rows):
            row = rows[-1] if kind in (Kind.F, Kind.W) else rows[0]
            kept[row], microbatch[row], span[row] = True, 0, count
    return actions.replace(microbatch=microbatch, span=span).take(np.flatnonzero(kept))

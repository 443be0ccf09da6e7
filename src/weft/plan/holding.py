"""Holding: the most bytes of each device, by the order of its lane alone.

A device runs one action after the other, so what it holds at an action does not depend on when
that runs. Copies to the host are not in a lane: with these only the simulator knows.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.cost import Layout
from weft.ir.graph import Backward
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.plan.chain import Chain, Layers

Bytes: TypeAlias = NDArray[np.float64]


class Holding:
    """What the devices of a program without passes hold; copies may share optimizer state."""

    def __init__(self, program: Program, layout: Layout) -> None:
        actions = program.actions
        backwards = [one.backward for one in program.graph.stages]
        is_frozen = np.array([one is Backward.INPUT for one in backwards])[actions.stage]
        is_kept = np.array([one is not Backward.NONE for one in backwards])[actions.stage]
        kind = actions.kind
        is_shared = layout.copies > 1 and layout.is_sharded
        self._share = 1 / len(program.placement.pipes) if is_shared else 1.0
        self._program, self._stage = program, actions.stage
        self._scale = np.maximum(actions.span, 1) / program.parts * is_kept
        self._is_forward = kind == Kind.F
        self._is_backward = (kind == Kind.B) | (kind == Kind.I)
        self._is_end = (kind == Kind.B) | (kind == Kind.W) | ((kind == Kind.I) & is_frozen)
        self._bounds = np.searchsorted(program.first_of_slot, program.bounds)

    def peaks(self, chain: Chain, layers: Layers, recomputed: Collection[int] = ()) -> Bytes:
        """For each device, its peak if these stages are recomputed."""
        sums = chain.sums(layers)
        again = np.zeros(len(layers), np.bool_)
        again[list(recomputed)] = True
        kept = np.where(again, sums.inputs, sums.saved)
        late = np.where(again, sums.saved, 0.0)
        stage, scale = self._stage, self._scale
        taken = (kept[stage] * self._is_forward + late[stage] * self._is_backward) * scale
        given = (kept + late)[stage] * self._is_end * scale
        first = self._program.first_of_slot
        if len(first) < len(stage):
            taken, given = (np.add.reduceat(column, first) for column in (taken, given))
        before = np.concatenate([[0.0], np.cumsum(taken - given)])
        level = before[:-1] + taken + self._scratch(chain, layers, again)
        found = self.state(chain, layers)
        for index, lane in enumerate(self._program.lanes):
            start, stop = int(self._bounds[index]), int(self._bounds[index + 1])
            if start < stop:
                found[lane.device] += max(0.0, float(level[start:stop].max() - before[start]))
        return found

    def state(self, chain: Chain, layers: Layers) -> Bytes:
        """For each device, what it holds throughout: weights, gradients and optimizer state."""
        sums = chain.sums(layers)
        each = sums.state + self._share * sums.optimizer
        held = [[stage for _, stage in stages] for stages in self._program.placement.held]
        return np.array([float(each[stages].sum()) for stages in held])

    def _scratch(self, chain: Chain, layers: Layers, again: NDArray[np.bool_]) -> Bytes | float:
        """For each slot, what its actions need besides while they run; a forward runs again."""
        scratch = chain.blocks.memory.scratch
        if scratch is None:
            return 0.0
        most = np.maximum.reduceat(scratch, chain.bounds(layers)[:-1])
        runs = 1 + (self._is_backward & again[self._stage])
        return np.asarray(np.add.reduceat(runs * most[self._stage], self._program.first_of_slot))

"""The bench: what a search has made already, and how much of it was simulated.

Chains of a division, programs of a schedule and their steps are made once and kept while they are
used; the work of a search is counted in actions, which are the same everywhere.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import replace
from functools import cached_property

import numpy as np

from weft.cost import Cost, Derivation, Layout
from weft.ir.program import Program
from weft.lower import overlapping, recompute, updates
from weft.plan.blocks import derived, measured
from weft.plan.chain import Chain
from weft.plan.clock import Clock
from weft.plan.holding import Holding
from weft.plan.question import Question
from weft.plan.space import Candidate, Division
from weft.schedules import Schedule
from weft.simulate import simulate
from weft.timeline import Timeline

KEPT = 1_500_000  # actions of programs that are kept


class Bench:
    """Everything that candidates of a question have in common."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.actions = 0  # simulated so far
        self._chains: dict[Hashable, Chain] = {}
        self._programs: OrderedDict[Hashable, Ready] = OrderedDict()
        self._kept = 0

    def derivation(self, division: Division, *, is_selective: bool) -> Derivation:
        """The model of a division on its devices."""
        question = self.question
        assert question.model is not None
        return Derivation(
            model=replace(question.model, microbatch=division.microbatch_size),
            device=question.cluster.device,
            layout=division.layout,
            storage=replace(question.storage, is_selective=is_selective),
        )

    def chain(self, division: Division, *, is_selective: bool = False, pipes: int = 1) -> Chain:
        """What the blocks of the model cost there, with as many copies on a pipeline's devices."""
        key = (division.key, is_selective, pipes)
        if key not in self._chains:
            self._chains[key] = self._priced(division, is_selective, pipes)
        return self._chains[key]

    def _priced(self, division: Division, is_selective: bool, pipes: int) -> Chain:
        if self.question.measured is None:
            setting = self.derivation(division, is_selective=is_selective)
            return derived(setting, division.devices, pipes=pipes)
        cost, device = self.question.measured, self.question.cluster.device
        capacity = min(cost.memory.capacity, device.memory)
        limited = replace(cost, memory=replace(cost.memory, capacity=capacity))
        chain = measured(limited, self.question.layers)
        return with_copies(chain, division.layout, pipes)

    def ready(self, candidate: Candidate, microbatches: int) -> Ready:
        """The program of a candidate with as many microbatches; those in use are kept."""
        layout = candidate.division.layout
        shape = candidate.shape.but(microbatches=microbatches)
        key = (id(candidate.schedule), shape, layout.copies > 1, layout.is_sharded)
        found = self._programs.get(key)
        if found is None:
            program = candidate.schedule.program(shape)
            found = self._programs[key] = Ready(program, layout, candidate.schedule)
            self._kept += len(found.program)
        self._programs.move_to_end(key)
        while self._kept > KEPT and len(self._programs) > 2:
            _, dropped = self._programs.popitem(last=False)
            self._kept -= len(dropped.program)
        return found

    def timed(self, program: Program, cost: Cost) -> Timeline:
        """When everything happens, by the simulator."""
        return simulate(overlapping(program, cost), cost)


class Ready:
    """A program without passes on a layout, and what times and weighs it."""

    def __init__(self, program: Program, layout: Layout, schedule: Schedule) -> None:
        self.program, self.layout = program, layout
        self.schedule = schedule  # which lives as long as what it is known by

    @cached_property
    def holding(self) -> Holding:
        return Holding(self.program, self.layout)

    @cached_property
    def clock(self) -> Clock:
        return Clock(self.program, self.layout)

    def step(self, recomputed: frozenset[int]) -> Program:
        """As it is timed: with what is recomputed, its sums and its updates."""
        again = recompute(self.program, stages=recomputed) if recomputed else self.program
        has_copies = self.layout.copies > 1
        is_sharded = has_copies and self.layout.is_sharded
        return updates(again, is_sharded=is_sharded, is_replicated=has_copies)


def with_copies(chain: Chain, layout: Layout, pipes: int) -> Chain:
    """The same where copies sum their gradients over the link between devices.

    Where they share the optimizer's state, each keeps and updates its part, and weights are
    gathered; else all get the summed gradients. What was measured with copies has that already.
    """
    blocks, copies = chain.blocks, layout.copies * pipes
    if copies == 1 or any(blocks.times.reduce):
        return chain
    memory, times = blocks.memory, blocks.times
    gathered = memory.weights if layout.is_sharded else memory.gradients
    sent = np.add(memory.gradients, gathered) * (copies - 1) / copies
    part = 1 / layout.copies if layout.is_sharded else 1.0
    changed = replace(
        blocks,
        times=replace(
            times,
            reduce=tuple((sent / blocks.network.default.bandwidth).tolist()),
            update=tuple(part * seconds for seconds in times.update),
        ),
        memory=replace(memory, optimizer=tuple(part * size for size in memory.optimizer)),
    )
    return Chain(changed, chain.has_ends)

"""A clock: how long a step of a program takes, for one cut after another.

What does not change with the cut (who waits for whom, in which order gradients are summed) is found
once; then a cut takes little more than one walk over the lanes. It is the simulator's own machine,
and gives what `simulate(updates(recompute(program)))` gives; what it does not know, such as
measured rests between actions, is left to that.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from itertools import pairwise

import numpy as np

from weft.cost import Layout
from weft.ir.actions import Index
from weft.ir.earliest import (
    MOST_COLUMNS,
    WIDE,
    Seconds,
    Wait,
    all_lanes_at_once,
    earliest,
    lane_by_lane,
)
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.plan.chain import Chain, Layers, StageSums


class Clock:
    """The times of one program, whose layout says what is summed with copies elsewhere."""

    def __init__(self, program: Program, layout: Layout) -> None:
        self._program = program
        self._actions = program.actions
        self._has_sums = layout.copies > 1 or len(program.placement.pipes) > 1
        self._has_gathers = layout.copies > 1 and layout.is_sharded
        self._scale = np.maximum(program.actions.span, 1) / program.parts
        self._has_pairs = bool(program.actions.joined.any())
        self._is_backward = np.isin(program.actions.kind, (Kind.B, Kind.I))
        self._remember_waits()

    def knows(self, chain: Chain) -> bool:
        """Whether it times all that a cost describes."""
        blocks = chain.blocks
        is_plain = blocks.measurement is None and not (
            blocks.overhead or blocks.times.close or blocks.times.backward or blocks.sizes
        )
        is_recomputing = bool((self._actions.kind == Kind.R).any())
        return is_plain and not is_recomputing

    def seconds(self, chain: Chain, layers: Layers, recomputed: Collection[int] = ()) -> float:
        """From the first start of a step to its last update."""
        return self.measured(chain, layers, recomputed)[0]

    def measured(
        self, chain: Chain, layers: Layers, recomputed: Collection[int] = ()
    ) -> tuple[float, float]:
        """The same, and the seconds that all devices together are busy in it."""
        sums = chain.sums(layers)
        duration, gap = self._durations(chain, sums, recomputed)
        delay = self._delays(chain, layers) - gap[self._producer]
        end = self._starts(delay, duration + gap) + duration
        updates = sum(
            float(sums.update[stage]) for held in self._order_of_updates for stage in held
        )
        return self._updated(end, sums), float(duration.sum() + gap.sum()) + updates

    # seconds of slots

    def _durations(
        self, chain: Chain, sums: StageSums, recomputed: Collection[int]
    ) -> tuple[Seconds, Seconds]:
        """Of every slot, and for how much longer its own lane is busy.

        A forward that runs again is part of its backward's slot; before a pair it is a slot of its
        own, which waits for nothing: the lane is busy that much longer after the slot before.
        """
        table = np.zeros((len(Kind), len(sums.forward)))
        again = np.zeros(len(sums.forward))
        again[list(recomputed)] = sums.recompute[list(recomputed)]
        table[Kind.F] = sums.forward
        table[Kind.B] = sums.input_grad + sums.weight_grad
        table[Kind.I] = sums.input_grad
        table[Kind.W] = sums.weight_grad
        each = table[self._actions.kind, self._actions.stage] * self._scale
        more = np.where(self._is_backward, again[self._actions.stage] * self._scale, 0.0)
        if not self._has_pairs:
            return each + more, np.zeros(len(each))
        first = self._program.first_of_slot
        together, before = np.add.reduceat(each, first), np.add.reduceat(more, first)
        gap = np.zeros(len(together))
        for kinds, slots in self._pairs.items():
            ratios = chain.blocks.pairs
            together[slots] *= ratios.get(kinds, ratios.get(kinds[::-1], 1.0))
            gap[slots - 1] += before[slots]
            before[slots] = 0.0
        return together + before, gap

    @cached_property
    def _pairs(self) -> dict[str, Index]:
        """Slots of two actions, by the letters of their kinds."""
        second = np.flatnonzero(self._actions.joined == 1)
        kinds = np.stack([self._actions.kind[second - 1], self._actions.kind[second]], axis=1)
        found: dict[str, Index] = {}
        for pair in np.unique(kinds, axis=0):
            name = "".join(Kind(int(kind)).name for kind in pair)
            rows = second[(kinds == pair).all(axis=1)]
            found[name] = self._program.slot_of[rows]
        return found

    # who waits for whom

    def _remember_waits(self) -> None:
        """The dependencies that the lanes do not imply, and each one's rank at its consumer."""
        program, needs = self._program, self._program.dependencies
        self._bounds = np.searchsorted(program.first_of_slot, program.bounds)
        consumer, producer = program.slot_of[needs.consumer], program.slot_of[needs.producer]
        lane = program.lane_of[program.first_of_slot]
        is_implied = (lane[consumer] == lane[producer]) & (producer <= consumer)
        rows = np.flatnonzero(~is_implied)
        rows = rows[np.argsort(consumer[rows], kind="stable")]
        self._consumer, self._producer = consumer[rows], producer[rows]
        self._rank = np.arange(len(rows)) - np.searchsorted(self._consumer, self._consumer)
        self._source = program.device_of[needs.producer[rows]]
        self._target = program.device_of[needs.consumer[rows]]
        self._edge = np.where(program.crossing[rows], needs.edge[rows], -1)
        first = np.maximum(
            self._actions.microbatch[needs.producer[rows]],
            self._actions.microbatch[needs.consumer[rows]],
        )
        ends = self._actions.microbatch + self._actions.span
        last = np.minimum(ends[needs.producer[rows]], ends[needs.consumer[rows]])
        self._common = (last - first) / program.parts

    def _delays(self, chain: Chain, layers: Layers) -> Seconds:
        """How long each of these values travels."""
        latency, bandwidth = chain.links(self._program.devices)
        size = np.append(chain.messages(layers), 0.0)[self._edge] * self._common
        slowness = 1 / bandwidth
        travel = latency[self._source, self._target] + size * slowness[self._source, self._target]
        return np.where(self._edge >= 0, travel, 0.0)

    def _starts(self, delay: Seconds, duration: Seconds) -> Seconds:
        columns = int(self._rank.max(initial=-1)) + 1
        lanes = int((np.diff(self._bounds) > 0).sum())
        if lanes >= WIDE and columns <= MOST_COLUMNS:
            waits = [self._column(column, delay) for column in range(columns)]
            return all_lanes_at_once(self._bounds, waits, duration)
        more: dict[int, list[tuple[int, float]]] = {}
        for row in np.flatnonzero(self._rank > 0).tolist():
            wait = int(self._producer[row]), float(delay[row])
            more.setdefault(int(self._consumer[row]), []).append(wait)
        return lane_by_lane(self._bounds, self._column(0, delay), more, duration)

    def _column(self, column: int, delay: Seconds) -> Wait:
        """The waits of one rank."""
        slots = int(self._bounds[-1])
        rows = self._rank == column
        producer = np.full(slots + 1, slots, np.int64)
        producer[self._consumer[rows]] = self._producer[rows]
        delays = np.zeros(slots + 1)
        delays[self._consumer[rows]] = delay[rows]
        return Wait(producer, delays, has_delay=bool(delays.any()))

    # sums and updates

    def _updated(self, end: Seconds, sums: StageSums) -> float:
        """When the last update has ended, and the last gather of what it made."""
        ready = {
            stage: max(float(end[slot]) for slot in slots)
            for stage, slots in self._last_gradients.items()
        }
        latest = float(end.max(initial=0.0))
        summed = sums.reduce * (0.5 if self._has_gathers else 1.0)
        lanes, updated = [], np.zeros(self._program.stages)
        for device, held in enumerate(self._order_of_updates):
            done, lane = ready, 0.0
            if self._has_sums:
                done = {}
                for stage in self._in_order(self._order_of_sums, held):
                    lane = done[stage] = max(lane, ready[stage]) + float(summed[stage])
            lanes.append(lane)
            clock = float(end[self._last_slots[device]]) if held else 0.0
            for stage in held:
                clock = max(clock, done[stage]) + float(sums.update[stage])
                updated[stage] = max(updated[stage], clock)
            latest = max(latest, clock)
        if self._has_gathers:
            latest = max(latest, *self._gathered(lanes, updated, summed))
        return latest

    def _gathered(self, lanes: list[float], updated: Seconds, seconds: Seconds) -> list[float]:
        """When each device has gathered what all copies of its stages have updated."""
        found = []
        for lane, held in zip(lanes, self._order_of_updates, strict=True):
            for stage in self._in_order(self._order_of_gathers, held):
                lane = max(lane, float(updated[stage])) + float(seconds[stage])
            found.append(lane)
        return found

    @staticmethod
    def _in_order(order: list[int], held: list[int]) -> list[int]:
        """The stages that a device holds, as often as it does, in an order of all."""
        return [stage for stage in order for _ in range(held.count(stage))]

    @cached_property
    def _last_slots(self) -> list[int]:
        """The last slot of each device."""
        last = [0] * self._program.devices
        for lane, (first, stop) in zip(self._program.lanes, pairwise(self._bounds), strict=True):
            if first < stop:
                last[lane.device] = int(stop) - 1
        return last

    @cached_property
    def _gradients(self) -> dict[tuple[int, int], int]:
        """For each (pipe, stage), the last action that adds to its weight gradient."""
        rows = np.flatnonzero(np.isin(self._actions.kind, (Kind.B, Kind.W)))
        holders = zip(
            self._actions.pipe[rows].tolist(), self._actions.stage[rows].tolist(), strict=True
        )
        return dict(zip(holders, rows.tolist(), strict=True))

    @cached_property
    def _last_gradients(self) -> dict[int, list[int]]:
        """For each stage, the slots that its gradients are whole after: one on every pipe."""
        found: dict[int, list[int]] = {}
        for (_, stage), row in self._gradients.items():
            found.setdefault(stage, []).append(int(self._program.slot_of[row]))
        return found

    @cached_property
    def _order_of_updates(self) -> list[list[int]]:
        """For each device, its stages in the order in which their gradients are done."""
        return [
            [stage for _, stage in sorted(held, key=lambda one: self._gradients.get(one, -1))]
            for held in self._program.placement.held
        ]

    @cached_property
    def _order_of_sums(self) -> list[int]:
        """Stages by when their gradients are done if every slot takes a second."""
        start = self._unit_starts
        when = {
            stage: max(float(start[slot]) for slot in slots)
            for stage, slots in self._last_gradients.items()
        }
        return sorted(range(self._program.stages), key=lambda stage: when[stage])

    @cached_property
    def _order_of_gathers(self) -> list[int]:
        """Stages by when their first forward begins."""
        first = np.full(self._program.stages, np.inf)
        rows = np.flatnonzero(self._actions.kind == Kind.F)
        starts = self._unit_starts[self._program.slot_of[rows]]
        np.minimum.at(first, self._actions.stage[rows], starts)
        return sorted(range(self._program.stages), key=lambda stage: float(first[stage]))

    @cached_property
    def _unit_starts(self) -> Seconds:
        needs = self._program.precedence(np.zeros(len(self._program.dependencies)))
        return earliest(needs, np.ones(len(self._program.first_of_slot)))

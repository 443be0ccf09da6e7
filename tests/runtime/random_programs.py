"""Asynchronous programs at random: lanes of a family that the literature is part of."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from weft.errors import InputError
from weft.ir.actions import Action, Actions
from weft.ir.kinds import Kind
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.schedules.kit.asynchronous import Run, asynchronous


def random_asynchronous(chosen: Random) -> Program:
    """Any warm-up, order of the microbatches of a step, staleness of the weights and recomputation.

    Most of them make sense; others wait for each other, or for weights that do not exist yet.
    """
    while True:
        try:
            return _chosen(chosen)
        except InputError:  # a pair that a period would cut
            continue


def _chosen(chosen: Random) -> Program:
    devices, step = chosen.randint(1, 3), chosen.choice([1, 1, 2, 3, 4])
    groups = chosen.choice([1, 1, 1, 2])
    placement = Placement.looped(devices, groups)
    if groups == 2 and chosen.random() < 0.3:
        placement = Placement.wave(devices)
    is_stashing = chosen.random() < 0.75
    lanes = [_Lane(chosen, device, placement, step) for device in range(devices)]
    if chosen.random() < 0.7:  # as one pipeline would have them
        order = lanes[0].order
        for lane in lanes:
            lane.order, lane.back = order, order
        extra = chosen.choice([0, 0, 0, 1, 3])
        for device, lane in enumerate(lanes):
            lane.warmup = (devices - 1 - device) + extra + (groups - 1) * step
    fill = 3 + max(max(lane.staleness.values()) for lane in lanes)
    fill += max(lane.warmup for lane in lanes) // step
    run = Run(updates=2 * fill + 4, microbatches=step, fill=fill, drain=fill)

    def lane_of(device: int, updates: int) -> Actions:
        return lanes[device].actions(updates, is_stashing=is_stashing)

    return asynchronous("any", placement, lane_of, run, is_stashing=is_stashing)


class _Lane:
    """How one device goes through its steps."""

    def __init__(self, chosen: Random, device: int, placement: Placement, step: int) -> None:
        self.step = step
        self.stages = [stage for _, stage in placement.held[device]]
        self.order = chosen.sample(range(step), step)
        self.back = self.order if chosen.random() < 0.8 else chosen.sample(range(step), step)
        self.warmup = chosen.randint(0, 2 * step)
        staleness = chosen.choice([0, 0, 0, 1, 2])
        self.staleness = {
            (stage, index): staleness + (chosen.random() < 0.1)
            for stage in self.stages
            for index in range(step)
        }  # updates that weights are older than the newest
        often = chosen.choice([0, 0, 0.5, 1])
        self.again = {place for place in self.staleness if chosen.random() < often}  # recomputed
        self.delay = chosen.choice([0, 0, 0, 0, 0, 1])  # of updates, in slots

    def actions(self, updates: int, *, is_stashing: bool) -> Actions:
        slots: list[tuple[float, int, Action]] = []
        for turn, stage in enumerate(self.stages):
            for update in range(updates):
                for place in range(self.step):
                    slots += self._of_microbatch(update, place, turn, stage)
                last = (update + 1) * self.step - 1 + self._offset(turn)
                at = last + 0.5 + self.delay
                slots.append((at, turn, Action(stage, Kind.UPDATE, version=update)))
        lane = [action for _, _, action in sorted(slots, key=lambda slot: slot[:2])]
        return Actions.collect(self._versioned(lane, is_stashing=is_stashing))

    def _versioned(self, lane: list[Action], *, is_stashing: bool) -> Iterator[Action]:
        """Forwards with the newest weights where they stand, or older; backwards with the same."""
        made, used = dict.fromkeys(self.stages, 0), dict[tuple[int, int | None], int]()
        for action in lane:
            place = (action.stage, action.microbatch)
            if action.kind is Kind.UPDATE:
                made[action.stage] += 1
                yield action
                continue
            if action.kind is Kind.F or not is_stashing:
                stale = self.staleness[action.stage, (action.microbatch or 0) % self.step]
                used[place] = max(0, made[action.stage] - stale * is_stashing)
            yield action._replace(version=used.get(place, 0))

    def _offset(self, turn: int) -> int:
        """Later stages of a device come first in the backward."""
        return (len(self.stages) - 1 - turn) * self.step

    def _of_microbatch(
        self, update: int, place: int, turn: int, stage: int
    ) -> list[tuple[float, int, Action]]:
        there, back = self.order[place], self.back[place]
        forward = self._action(stage, Kind.F, update, there)
        backward = self._action(stage, Kind.B, update, back)
        at = update * self.step + place
        found = [
            (at - self.warmup + turn * self.step, turn, forward),
            (at + 0.4 + self._offset(turn), turn, backward),
        ]
        if (stage, back) in self.again:
            found.append((at + 0.3 + self._offset(turn), turn, backward._replace(kind=Kind.R)))
        return found

    def _action(self, stage: int, kind: Kind, update: int, index: int) -> Action:
        return Action(stage, kind, update * self.step + index)

"""Orders that schedules are made of.

The plainest vocabulary is the slot: give every action of a lane the abstract slot it falls
into, and the lane is the actions in slot order. Slots order a lane; they are not times.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.ir.actions import Actions, Index
from weft.ir.kinds import Kind
from weft.ir.placement import Placement

Row: TypeAlias = tuple[Actions, ArrayLike]


def by_slot(*rows: Row) -> Actions:
    """The actions of all rows, in the order of their slots."""
    actions = Actions.concatenate([row[0] for row in rows])
    slots = np.concatenate([np.broadcast_to(row[1], len(row[0])) for row in rows])
    return actions.take(np.argsort(slots, kind="stable"))


def one_forward_one_backward(forward: Actions, backward: Actions, *, warmup: int) -> Actions:
    """`warmup` forwards, then forward and backward in turn, then what is left.

    F F F | F B F B F B | B B B
    """
    turns = np.arange(len(forward))
    return by_slot((forward, 2 * (turns - warmup)), (backward, 2 * turns + 1))


def split_one_forward_one_backward(
    forward: Actions, backward: Actions, *, warmup: int, weight_start: int
) -> Actions:
    """The same with I in place of B, and W, oldest first, from turn `weight_start` on.

    F F F | F I, F I W, F I W | I W, I W | W W        (weight_start = 1)
    """
    turns = np.arange(len(forward))
    return by_slot(
        (forward, 3 * (turns - warmup)),
        (backward.replace(kind=Kind.I), 3 * turns + 1),
        (backward.replace(kind=Kind.W), 3 * (turns + weight_start) + 2),
    )


class Table:
    """The virtual order of looped stages: groups of microbatches, each through every stage.

    Groups of 4 microbatches, two stages per device:
        forward   microbatch 0 1 2 3 0 1 2 3 4 5 6 7 4 5 6 7
                  turn       0 0 0 0 1 1 1 1 0 0 0 0 1 1 1 1
    Backwards follow the same table with the turns reversed.
    """

    def __init__(self, groups: list[int], *, devices: int, stages_per_device: int) -> None:
        turns: list[NDArray[np.int64]] = []
        microbatches: list[NDArray[np.int64]] = []
        first = 0
        for size in groups:
            turns.append(np.repeat(np.arange(stages_per_device), size))
            microbatches.append(np.tile(np.arange(first, first + size), stages_per_device))
            first += size
        self._turn: Index = np.concatenate(turns)
        self._microbatch: Index = np.concatenate(microbatches)
        self._devices = devices
        self._last = stages_per_device - 1

    def forward(self, device: int) -> Actions:
        return Actions.of(self._turn * self._devices + device, Kind.F, self._microbatch)

    def backward(self, device: int) -> Actions:
        turn = self._last - self._turn
        return Actions.of(turn * self._devices + device, Kind.B, self._microbatch)


def balanced_groups(microbatches: int, devices: int) -> list[int]:
    """As many groups as fit of at least `devices` microbatches, as equal as can be."""
    count = max(1, microbatches // devices)
    small, larger = divmod(microbatches, count)
    return [small + 1] * larger + [small] * (count - larger)


def ragged_groups(microbatches: int, devices: int) -> list[int]:
    """Groups of `devices` microbatches and a last one of what is left."""
    full, rest = divmod(microbatches, devices)
    return [devices] * full + [rest] * bool(rest)


def breadth_first(device: int, placement: Placement, microbatches: int) -> Actions:
    """All forwards of the device's first stage, of the next, ...; backwards the other way.

    F0 F1 F0' F1' | B0' B1' B0 B1
    """
    every = np.arange(microbatches)
    stages = [stage for _, stage in placement.held[device]]
    forwards = [Actions.of(stage, Kind.F, every) for stage in stages]
    backwards = [Actions.of(stage, Kind.B, every) for stage in reversed(stages)]
    return Actions.concatenate(forwards + backwards)

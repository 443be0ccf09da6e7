"""Squeeze: a program's idle slots filled by moving its actions, never above a peak.

    later      from the last action to the first, each as late as its readers and the peak allow
    earlier    from the first to the last, each as early as what it reads and the peak allow

Neither makes a program longer; in turn they close the gaps of warm-up and cool-down (project
schedulers call it justification). Later is earlier with time running backwards: readers are
then what is read, and what gave memory back takes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.ir.earliest import earliest
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.schedules.kit.slots import Constraints, activations, constraints, in_slots

# Later, earlier, later; then forwards earlier still, in case W is shorter than a slot.
_EVERY = (Kind.F, Kind.B, Kind.I, Kind.W)
_PASSES = (_EVERY, _EVERY, _EVERY, (Kind.F,))


def squeezed(program: Program, *, peak: Callable[[int, int], float]) -> Program:
    """The same actions, reordered to end sooner with at most `peak` microbatches in flight.

    `peak` is a function of the number of devices and the device.
    """
    devices = program.devices
    most = [activations(program, peak(devices, device)) for device in range(devices)]
    grid = _Grid(_slots(program), constraints(program))
    for kinds in _PASSES:
        movable = np.flatnonzero(np.isin(program.actions.kind, kinds)).tolist()
        grid = _earlier(grid.mirrored(), movable, most)
    return in_slots(program, grid.slots)


def _slots(program: Program) -> list[int]:
    """When everything starts if every action takes one slot."""
    precedence = program.precedence(np.zeros(len(program.dependencies)))
    return [int(start) for start in earliest(precedence, np.ones(len(program)))]


@dataclass(frozen=True, slots=True)
class _Grid:
    """The slot of every action, and what ties it there."""

    slots: list[int]
    tied: Constraints

    def mirrored(self) -> _Grid:
        """The same with time running backwards."""
        last, tied = max(self.slots), self.tied
        holds = [-amount for amount in tied.holds]
        return _Grid(
            [last - slot for slot in self.slots],
            Constraints(tied.device, reads=tied.readers, readers=tied.reads, holds=holds),
        )

    def busy(self) -> NDArray[np.bool_]:
        """Whether an action is in [device, slot]."""
        busy = np.zeros((max(self.tied.device) + 1, max(self.slots) + 1), np.bool_)
        busy[self.tied.device, self.slots] = True
        return busy

    def held(self) -> NDArray[np.int64]:
        """Activations held in [device, slot]; what is given back is held to the slot's end."""
        device, holds = np.array(self.tied.device), np.array(self.tied.holds)
        changes = np.zeros((device.max() + 1, max(self.slots) + 2), np.int64)
        np.add.at(changes, (device, np.array(self.slots) + (holds < 0)), holds)
        return np.cumsum(changes, axis=1)


def _earlier(grid: _Grid, movable: list[int], most: list[int]) -> _Grid:
    """Every movable action, from the first on, in the first free slot that it may have."""
    slots, tied = grid.slots.copy(), grid.tied
    device_of, holds_of, reads_of = tied.device, tied.holds, tied.reads
    busy_on, held_on = grid.busy().tolist(), grid.held().tolist()
    for action in sorted(movable, key=grid.slots.__getitem__):
        device, holds, old, new = device_of[action], holds_of[action], slots[action], 0
        busy, held = busy_on[device], held_on[device]
        for other in reads_of[action]:
            if slots[other] >= new:
                new = slots[other] + 1
        if holds > 0:
            new = _first_below(held, new, old, most[device] - holds)
        while new < old and busy[new]:
            new += 1
        busy[old], busy[new], slots[action] = False, True, new
        if holds:
            is_given_back = int(holds < 0)
            for slot in range(new + is_given_back, old + is_given_back):
                held[slot] += holds
    return _Grid(slots, tied)


def _first_below(held: list[int], first: int, last: int, most: int) -> int:
    """The first slot from which on, up to the last, no more than `most` is held."""
    while last > first and held[last - 1] <= most:
        last -= 1
    return last

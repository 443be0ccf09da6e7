"""Placement: which device holds which stage of which pipe."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError


@dataclass(frozen=True)
class Placement:
    """`pipes[pipe][stage]` is the device; a second pipe is a second copy of the weights."""

    pipes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.pipes or len({len(pipe) for pipe in self.pipes}) != 1 or not self.pipes[0]:
            raise InputError("a placement gives every stage of every pipe a device")
        used = {device for pipe in self.pipes for device in pipe}
        if used != set(range(len(used))):
            raise InputError(f"devices are numbered from 0 without gaps, got {sorted(used)}")

    @classmethod
    def straight(cls, devices: int) -> Placement:
        """Stage s on device s."""
        return cls((tuple(range(devices)),))

    @classmethod
    def looped(cls, devices: int, stages_per_device: int) -> Placement:
        """Stage s on device s mod D: 0 1 2 3 0 1 2 3."""
        return cls((tuple(range(devices)) * stages_per_device,))

    @classmethod
    def wave(cls, devices: int, stages_per_device: int = 2) -> Placement:
        """There and back: 0 1 2 3 3 2 1 0; with two stages per device a V."""
        there = tuple(range(devices))
        turns = (there if turn % 2 == 0 else there[::-1] for turn in range(stages_per_device))
        return cls((tuple(device for turn in turns for device in turn),))

    @cached_property
    def table(self) -> NDArray[np.int32]:
        """The device of [pipe, stage]."""
        return np.array(self.pipes, np.int32)

    @cached_property
    def devices(self) -> int:
        """How many devices there are."""
        return int(self.table.max()) + 1

    @property
    def stages(self) -> int:
        """How many stages a pipe has."""
        return len(self.pipes[0])

    @cached_property
    def held(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each device, the (pipe, stage) it holds, in order."""
        held: list[list[tuple[int, int]]] = [[] for _ in range(self.devices)]
        for pipe, devices in enumerate(self.pipes):
            for stage, device in enumerate(devices):
                held[device].append((pipe, stage))
        return tuple(map(tuple, held))

    @cached_property
    def weight_copies(self) -> float:
        """Most stage copies on one device, relative to an even share of the model."""
        return max(len(stages) for stages in self.held) * self.share

    @cached_property
    def replicas(self) -> int:
        """How many parts it has that share no device."""
        groups: list[set[int]] = []
        for pipe in self.pipes:
            apart = [group for group in groups if group.isdisjoint(pipe)]
            joined = set(pipe).union(*(group for group in groups if group not in apart))
            groups = [*apart, joined]
        return len(groups)

    @property
    def share(self) -> float:
        """An even share of a device, in stages: it has less than one where stages are split."""
        return self.devices / self.replicas / self.stages

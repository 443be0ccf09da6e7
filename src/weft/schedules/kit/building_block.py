"""The V family: slots of one microbatch on each device, repeated every six, W in the gaps.

Device d holds stage d on the way down and stage 2D - 1 - d on the way up. V-Half's block on four
devices:

    device 0   F . . . . . . . . . F . . . I . . . . . . . . . . I
    device 1   . . F . . . . . . F . . . . . . I . . . . . . . I .
    device 2   . . . . F . . . F . . . . . . . . . I . . . . I . .
    device 3   . . . . . . F F . . . . . . . . . . . . I . I . . .

The longer a block, the more microbatches are in flight, the shorter the wait at both ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from weft.cost import Share
from weft.ir.actions import Actions
from weft.ir.kinds import Kind
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.schedules.kit.orders import by_slot
from weft.schedules.kit.schedule import Claims
from weft.schedules.kit.shape import Shape

PERIOD = 6  # F, I and W of two stages


class Block(NamedTuple):
    """The slots of the first microbatch on a device."""

    forward_down: int
    forward_up: int
    input_grad_up: int
    input_grad_down: int


def repeated(name: str, blocks: Sequence[Block], *, microbatches: int) -> Program:
    """The program of one block for each device, repeated for every microbatch."""
    placement = Placement.wave(len(blocks))
    lanes = [
        _lane(block, [stage for _, stage in held], microbatches)
        for block, held in zip(blocks, placement.held, strict=True)
    ]
    return Program.build(name, placement, lanes, microbatches=microbatches)


def _lane(block: Block, stages: list[int], microbatches: int) -> Actions:
    down, up = stages
    turns = np.arange(microbatches)
    actions = [
        Actions.of(stage, kind, turns)
        for stage, kind in ((down, Kind.F), (up, Kind.F), (up, Kind.I), (down, Kind.I))
    ]
    slots = [first + PERIOD * turns for first in block]
    inputs = by_slot(*zip(actions[2:], slots[2:], strict=True))
    gaps = _gaps(np.sort(slots[2:], axis=None).tolist(), set(np.ravel(slots).tolist()))
    return by_slot(*zip(actions, slots, strict=True), (inputs.replace(kind=Kind.W), gaps))


def _gaps(after: Iterable[int], busy: set[int]) -> list[int]:
    """For each of these slots in turn, the first free one after it."""
    gaps = []
    slot = -1
    for start in after:
        slot = max(slot, start) + 1
        while slot in busy:
            slot += 1
        gaps.append(slot)
    return gaps


Peak: TypeAlias = Callable[[int, int], float]  # of (devices, device), in microbatches


def claims_of(peak: Peak, *, peak_formula: str) -> Claims:
    """What a squeezed block claims: each microbatch less in flight costs three forwards."""

    def seconds(shape: Shape, share: Share) -> float:
        devices, work = shape.devices, share.forward + share.backward
        fill = max(3 * (devices - peak(devices, devices - 1)) - 0.5, (devices - 1) / 2)
        return shape.microbatches * work + fill * share.forward

    def holds(shape: Shape, share: Share) -> bool:
        are_equal = share.forward == share.input_grad == share.weight_grad
        return are_equal and shape.microbatches > peak(shape.devices, shape.devices - 1)

    return Claims(
        formula="N (F + I + W) + max(3 (D - P) - 1/2, (D - 1)/2) F, F = I = W, N > P, the peak",
        seconds=seconds,
        peak_formula=peak_formula,
        peak=lambda shape, device: min(shape.microbatches, peak(shape.devices, device)),
        holds=holds,
    )

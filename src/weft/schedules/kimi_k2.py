"""Kimi K2: interleaved 1F1B with one more warm-up, so that each F overlaps a foreign backward.

    F F F F | F&I W F&I W F&I W | I W I W I W

The pair hides expert communication, W the sends of what the pair computed. In warm-up and
cool-down expert communication stays exposed; `paired-ends` hides what can be hidden there: see
docs/decisions/paired-ends.md for what that can bring and what it cannot.
"""

import numpy as np

from weft.cost import Share
from weft.ir.actions import Actions, Index
from weft.ir.kinds import Kind
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.schedules.kit.orders import Table, balanced_groups, by_slot
from weft.schedules.kit.schedule import FULL_PIPE, Claims, schedule
from weft.schedules.kit.shape import Shape


def _group(shape: Shape) -> int:
    return balanced_groups(shape.microbatches, shape.devices)[0]


def _warmup(shape: Shape, device: int) -> int:
    """The standard one and one more: else the last device would pair a microbatch with itself."""
    loops = (shape.stages_per_device - 1) * _group(shape)
    items = shape.microbatches * shape.stages_per_device
    return min(2 * (shape.devices - device - 1) + loops + 1, items)


def _lane(device: int, table: Table, shape: Shape) -> Actions:
    forward, backward = table.forward(device), table.backward(device)
    turns, warmup = np.arange(len(forward)), _warmup(shape, device)
    backward = backward.replace(joined=turns + warmup < len(turns))
    if shape.variant == "send-after-w":
        return by_slot((forward, 2 * (turns - warmup)), (backward, 2 * turns + 1))
    slots = 3.0 * turns + 1
    weights = backward.replace(kind=Kind.W, joined=0), slots + 1
    if shape.variant == "paired-ends":
        early, late = _end_pairs(turns, warmup, shape)
        forward = forward.replace(joined=np.isin(turns, early))
        backward = backward.replace(joined=backward.joined | np.isin(turns, late))
        slots[late] = slots[late - 1] + 0.5
    inputs = backward.replace(kind=Kind.I), slots
    return by_slot((forward, 3 * (turns - warmup)), inputs, weights)


def _end_pairs(turns: Index, warmup: int, shape: Shape) -> tuple[Index, Index]:
    """Which forwards and which backwards share the slot of the one before them.

    Forwards after the first group's, which nobody waits for yet; backwards of the last group's
    lower stages, two by two from the end.
    """
    if _group(shape) == 1:  # neighbours are one microbatch
        return turns[:0], turns[:0]
    loops, items = _group(shape) * shape.stages_per_device, len(turns)
    early = turns[loops + 1 : warmup : 2]
    start = max(items - (loops - _group(shape)), items - warmup)
    late = turns[turns > start]
    return early, late[(items - late) % 2 == 1]


def _seconds(shape: Shape, share: Share) -> float:
    """Each hop of the warm-up shows; of the others what is longer than W."""
    devices, loops = shape.devices, shape.stages_per_device
    slots = shape.microbatches * loops + devices * loops + devices - 4
    work = shape.microbatches * (share.forward + share.backward)
    if shape.variant == "send-after-w":
        fill = (devices - 1) * (share.forward + share.backward) / loops
        return work + fill + slots * share.latency
    cover = share.weight_grad / loops
    fill = (devices - 1) * (share.forward + share.input_grad) / loops
    shown = (devices * loops + devices - 2) * min(share.latency, cover)
    return work + fill + shown + slots * max(0.0, share.latency - cover)


def _holds(shape: Shape, share: Share) -> bool:
    is_plain = shape.variant != "paired-ends" and share.pair is None
    is_even = shape.microbatches % shape.devices == 0 and shape.microbatches > shape.devices
    return is_plain and is_even and shape.stages_per_device > 1 < shape.devices


def _peak(shape: Shape, device: int) -> float:
    items = shape.microbatches * shape.stages_per_device
    return min(items, _warmup(shape, device) + 1) / shape.stages_per_device


@schedule(
    name="kimi-k2",
    summary="interleaved 1F1B plus one warm-up: F and I in pairs, then W while their sends travel",
    paper="Kimi Team 2025, Kimi K2 (arXiv 2507.20534), Fig. 7",
    claims=Claims(
        formula="N (F + I + W) + (D - 1)(F + I)/K + (D K + D - 2) c, c <= W/K the latency of a hop",
        seconds=_seconds,
        peak_formula="min(N K, 2 (D - 1 - d) + (K - 1) G + 2) / K, G the first group",
        peak=_peak,
        holds=_holds,
    ),
    variants={
        "send-after-w": "pairs of F and the whole B: every hop of every slot shows",
        "paired-ends": "pairs of two F in the warm-up and of two I in the cool-down as well",
    },
    needs=[FULL_PIPE],
    stages_per_device=(1, None),
)
def kimi_k2(shape: Shape) -> Program:
    devices, loops = shape.devices, shape.stages_per_device
    groups = balanced_groups(shape.microbatches, devices)
    table = Table(groups, devices=devices, stages_per_device=loops)
    return Program.build(
        "kimi-k2",
        Placement.looped(devices, loops),
        [_lane(device, table, shape) for device in range(devices)],
        microbatches=shape.microbatches,
    )

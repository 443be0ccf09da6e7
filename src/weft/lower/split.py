"""Split: every whole backward becomes an input gradient and a weight gradient.

    1f1b, device 1    F0 F1 F2 B0    F3 B1    B2    B3
    split             F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3
    split, W 1 later  F0 F1 F2 I0    F3 I1 W0 I2 W1 I3 W2 W3

With each W later by d input gradients on device d, 1F1B becomes ZB-H1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.errors import InputError
from weft.ir.actions import Actions, Index
from weft.ir.graph import Backward
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.lower.periods import period_of


def split(program: Program) -> Program:
    """The same program with each B as I and, right after its slot, W; frozen weights have no W."""
    return split_late(program, late=(0,) * program.devices)


def split_late(program: Program, *, late: Sequence[int]) -> Program:
    """The same program with each B as I; its W waits until `late[device]` further Is have run."""
    if len(late) != program.devices or min(late) < 0:
        raise InputError(f"{program.name}: `late` counts input gradients, for each of the devices")
    if program.period is not None and any(late):
        raise InputError(f"{program.name} repeats; a late W would leave its repetition")
    actions = program.actions
    is_cut = actions.segment >= 0
    if (is_cut & (actions.kind == Kind.B)).any() and (~is_cut & (actions.kind == Kind.W)).any():
        raise InputError(
            f"{program.name} is split in part, and cut into segments, of which its own weight"
            f" gradients know nothing: split first, and cut what that gives, as in"
            f" experts(split(program))"
        )
    learns = np.array([s.backward is Backward.FULL for s in program.graph.stages])
    whole = np.flatnonzero((actions.kind == Kind.B) & learns[actions.stage])
    inputs = actions.replace(kind=np.where(actions.kind == Kind.B, Kind.I, actions.kind))
    weights = actions.take(whole).replace(kind=Kind.W, joined=0)

    after = program.slot_of[_later(program, whole, np.array(late))]
    order = np.argsort(np.concatenate([program.slot_of, after]), kind="stable")
    source = np.concatenate([np.arange(len(program)), whole])[order]
    return _rebuilt(program, Actions.concatenate([inputs, weights]).take(order), source)


def _later(program: Program, whole: Index, late: Index) -> Index:
    """For each of these Bs, the one that stands `late` further on in its lane, or the last."""
    lane = program.lane_of[whole]
    last = np.searchsorted(lane, lane, "right") - 1
    wanted = np.arange(len(whole)) + late[program.device_of[whole]]
    return np.asarray(whole[np.minimum(wanted, last)])


def _rebuilt(program: Program, actions: Actions, source: Index) -> Program:
    """The program with these actions; each stands in the lane of the action it came from."""
    lane = program.lane_of[source]
    bounds = np.searchsorted(lane, np.arange(len(program.lanes) + 1))
    lanes = {
        name: actions[int(bounds[index]) : int(bounds[index + 1])]
        for index, name in enumerate(program.lanes)
    }
    period = period_of(program, source=source, lane=lane, lanes=len(program.lanes))
    return program.with_lanes(lanes, period=period)

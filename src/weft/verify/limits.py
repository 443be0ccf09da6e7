"""Limits: what a program that runs may need of channels and memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.cost.units import BYTES, NONE, fitting
from weft.notation.tokens import token
from weft.simulate import simulate
from weft.timeline import Timeline
from weft.verify.context import Breach, Context


def deep_enough(context: Context) -> Iterator[Breach]:
    """Blocking sends do not lock up at the depth that channels have."""
    limit = context.limits.channel_depth
    if limit is None or context.blocking.least_depth <= limit:
        return
    program = context.blocking.program
    stuck = context.blocking.stuck(limit)
    waits = [
        f"device {program.device_of[wait.action]} waits"
        f" {'to send' if wait.is_sending else 'at'} {token(program, wait.action)}"
        for wait in stuck
    ]
    yield context.without(
        int(program.device_of[stuck[0].action]),
        token(program, stuck[0].action),
        f"with channels of depth {limit}, {', '.join(waits)}, and each keeps the next waiting."
        f" Give channels a depth of {context.blocking.least_depth}.",
    )


def within_memory(context: Context) -> Iterator[Breach]:
    """Every device stays within its memory."""
    cost = context.limits.cost
    if cost is None or np.isinf(cost.memory.capacity):
        return
    timeline = simulate(context.program, cost)
    for device, peak in enumerate(timeline.memory.peaks):
        if peak > cost.memory.capacity:
            row = _action_at_peak(timeline, device)
            unit = fitting(peak, BYTES) if cost.provenance else NONE
            yield context.at(
                row,
                f"device {device} needs memory of {unit.amount(peak)} at {context.token(row)}"
                f" and has {unit.amount(cost.memory.capacity)}. Keep fewer microbatches in flight,"
                " recompute or offload.",
            )


def _action_at_peak(timeline: Timeline, device: int) -> int:
    """The last action of a device to start before its memory peaks."""
    curve = timeline.memory.total(device)
    peak = curve.times[curve.levels.argmax()]
    rows = np.flatnonzero((timeline.program.device_of == device) & (timeline.start <= peak))
    return int(rows[timeline.start[rows].argmax()])

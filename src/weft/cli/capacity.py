"""Capacity: a warning where a device would hold more than it has.

Only `weft verify` refuses such a program: what does not fit can still be timed and drawn.
"""

from __future__ import annotations

import math

import click

from weft.cost.units import BYTES, fitting
from weft.timeline import Timeline

NAMED = 3  # devices


def warn_of_memory(timeline: Timeline) -> None:
    """Say on standard error which devices hold too much, and by how much."""
    capacity = timeline.cost.memory.capacity
    if math.isinf(capacity):
        return
    over = {device: peak for device, peak in enumerate(timeline.memory.peaks) if peak > capacity}
    if not over:
        return
    unit = fitting(max(over.values()), BYTES)
    named = [f"device {device} by {unit.amount(over[device] - capacity)}" for device in over]
    if len(named) > NAMED + 1:
        named = [*named[:NAMED], f"{len(named) - NAMED} more devices"]
    click.echo(
        f"weft: warning: {timeline.program.name} needs more than the {unit.amount(capacity)} of"
        f" memory that a device has: {', '.join(named)}. `weft explain` says what fits.",
        err=True,
    )

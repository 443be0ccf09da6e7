"""Phases: how a device warms up, what it does over and over, and how it cools down.

F F F F F|B F|B F|B B B B
warm-up │  steady  │ cool-down     of each the middle, three microbatches long
"""

from __future__ import annotations

import numpy as np

from weft.draw.window import Window
from weft.ir.kinds import Kind
from weft.timeline import Timeline

EXCERPT = 3  # microbatches


def phases(timeline: Timeline, device: int) -> dict[str, Window]:
    """An excerpt of each phase that the device has, by name."""
    forwards = _begins(timeline, device, (Kind.F,))
    backwards = _begins(timeline, device, (Kind.B, Kind.I))
    turn = min(backwards, default=timeline.makespan)
    last = max(forwards, default=0.0)
    begins = {
        "warm-up": [time for time in forwards if time < turn],
        "steady": [time for time in forwards if time >= turn],
        "cool-down": [time for time in backwards if time > last],
    }
    ends = {"warm-up": turn, "steady": min(begins["cool-down"], default=timeline.makespan)}
    return {
        name: _excerpt(times, ends.get(name, timeline.makespan))
        for name, times in begins.items()
        if times
    }


def _begins(timeline: Timeline, device: int, kinds: tuple[Kind, ...]) -> list[float]:
    """When the device begins each microbatch of each of its stages, in order."""
    program, actions = timeline.program, timeline.program.actions
    is_here = (program.device_of == device) & program.is_on_compute[program.lane_of]
    rows = np.flatnonzero(is_here & np.isin(actions.kind, kinds))
    opening = float(timeline.start.min(initial=np.inf))
    found: dict[tuple[int, int], float] = {}
    for row in rows[np.argsort(timeline.start[rows], kind="stable")].tolist():
        work = int(actions.stage[row]), int(actions.microbatch[row])
        found.setdefault(work, float(timeline.start[row]) - opening)
    return sorted(found.values())


def _excerpt(begins: list[float], end: float) -> Window:
    """From the first of those in the middle to what begins after the last of them."""
    first = max(0, (len(begins) - EXCERPT) // 2)
    last = first + EXCERPT
    return Window(begins[first], begins[last] if last < len(begins) else end)

"""Holdings: the most that each device holds, and of what."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.timeline import Category, Timeline


@dataclass(frozen=True, slots=True)
class Holding:
    """A device at its fullest.

    categories  bytes of each, the largest first
    time        since the first start; 0 where it holds as much throughout
    action      what begins then on the device, if anything does
    """

    device: int
    peak: float
    time: float
    categories: dict[Category, float]
    action: int | None


def holdings(timeline: Timeline) -> tuple[Holding, ...]:
    """One for each device."""
    return tuple(_holding(timeline, device) for device in range(timeline.program.devices))


def _holding(timeline: Timeline, device: int) -> Holding:
    total = timeline.memory.total(device)
    opening = float(timeline.start.min(initial=0.0))
    time = max(float(total.times[int(total.levels.argmax())]), opening)
    parts = {category: curve.at(time) for category, curve in timeline.memory.curves[device].items()}
    ranked = sorted(parts.items(), key=lambda part: -part[1])
    return Holding(
        device=device,
        peak=total.peak,
        time=time - opening,
        categories={category: size for category, size in ranked if size > 0},
        action=_begun(timeline, device, time),
    )


def _begun(timeline: Timeline, device: int, time: float) -> int | None:
    program = timeline.program
    here = (program.device_of == device) & program.is_on_compute[program.lane_of]
    begun = np.flatnonzero(here & (timeline.start == time))
    return int(begun[0]) if len(begun) else None

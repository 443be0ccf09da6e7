"""Shortage: in words, which devices need more memory than they have, by how much and of what."""

from __future__ import annotations

from weft.draw.units import memory_unit
from weft.explain import is_fitting
from weft.explain.holding import Holding, holdings
from weft.timeline import Category, Timeline

STATE = (Category.WEIGHTS, Category.GRADIENTS, Category.OPTIMIZER)


def shortage(timeline: Timeline) -> str:
    """What does not fit; empty where all does, or nothing is known of the devices."""
    if is_fitting(timeline) is not False:
        return ""
    unit, capacity = memory_unit(timeline), timeline.cost.memory.capacity
    fullest = max(holdings(timeline), key=lambda holding: holding.peak)
    others = sum(peak > capacity for peak in timeline.memory.peaks) - 1
    return (
        f"Device {fullest.device} needs {unit.amount(fullest.peak)} and has"
        f" {unit.amount(capacity)}: {unit.amount(fullest.peak - capacity)} too much."
        f"{_others(others)} {_what_fills(fullest, timeline)}"
    )


def state_of_devices(timeline: Timeline) -> tuple[float, ...]:
    """What each device holds of weights, gradients and optimizer state, whatever it keeps."""
    return tuple(
        sum(curves[category].peak for category in STATE if category in curves)
        for curves in timeline.memory.curves
    )


def _others(count: int) -> str:
    if count < 2:
        return " One other device also needs more than it has." if count else ""
    return f" {count} other devices also need more than they have."


def _what_fills(fullest: Holding, timeline: Timeline) -> str:
    unit = memory_unit(timeline)
    state = sum(fullest.categories.get(category, 0.0) for category in STATE)
    rest = fullest.peak - state
    alone = " alone" if state > timeline.cost.memory.capacity else ""
    return (
        f"Its weights, gradients and optimizer state{alone} are {unit.amount(state)},"
        f" what forwards keep for their backwards {unit.amount(rest)}."
    )

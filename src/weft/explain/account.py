"""Accounts: what each device does with its time."""

from __future__ import annotations

from dataclasses import dataclass

from weft.timeline import Cause, Idle, Timeline


@dataclass(frozen=True, slots=True)
class Account:
    """The time of one device; `stretches` in which it is idle, the longest first."""

    device: int
    work: float
    stretches: tuple[Idle, ...]

    @property
    def idle(self) -> float:
        return sum(stretch.seconds for stretch in self.stretches)

    @property
    def by_cause(self) -> dict[Cause, float]:
        """Idle seconds by cause, the largest first."""
        return by_cause(self.stretches)


def accounts(timeline: Timeline) -> tuple[Account, ...]:
    """One for each device."""
    found: list[list[Idle]] = [[] for _ in range(timeline.program.devices)]
    for stretch in timeline.idle:
        found[stretch.device].append(stretch)
    return tuple(
        Account(device, float(work), tuple(sorted(idle, key=_longest_first)))
        for device, (work, idle) in enumerate(zip(timeline.device_work, found, strict=True))
    )


def by_cause(stretches: tuple[Idle, ...] | list[Idle]) -> dict[Cause, float]:
    """Seconds by cause, the largest first; ties in the order of a step."""
    total = dict.fromkeys(Cause, 0.0)
    for stretch in stretches:
        total[stretch.cause] += stretch.seconds
    ranked = sorted(total.items(), key=lambda item: -round(item[1], 9))
    return {cause: seconds for cause, seconds in ranked if seconds > 0}


def _longest_first(stretch: Idle) -> tuple[float, float]:
    return -round(stretch.seconds, 9), stretch.start

"""Slots: one of the warm-up of a device, one of its steady state, one of its cool-down.

    warm-up     steady                    cool-down
    A_f  E_f    A_f  E_b  E_f  A_b  W     E_b  A_b  W     what a device computes in each

A slot is a stretch of a program's lane, so that it is the same one in every timeline of that
program. It lasts until the next one begins.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple, TypeAlias

from weft.draw.window import Window
from weft.errors import InputError
from weft.ir.kinds import Kind, Stream
from weft.ir.program import Program
from weft.timeline import Timeline

PHASES = ("warm-up", "steady", "cool-down")
BACKWARDS = (Kind.B, Kind.I, Kind.R)
LONGEST = 2.0  # times its work that is shown of a slot and of the wait after it

_Key: TypeAlias = tuple[bool, int, int]  # whether it is a backward, stage and microbatch


class Slot(NamedTuple):
    """A slot of a phase: its actions stand at `first` and before `stop` on the lane."""

    phase: str
    first: int
    stop: int
    is_last: bool

    def window(self, timeline: Timeline) -> Window:
        """From its start to that of the next one, without most of a long wait."""
        start = float(timeline.start[self.first])
        worked = float(timeline.end[self.first : self.stop].max()) - start
        length = worked if self.is_last else float(timeline.start[self.stop]) - start
        opening = start - float(timeline.start.min())
        return Window(opening, opening + min(length, LONGEST * worked))


def slots_of(program: Program, device: int) -> list[Slot]:
    """A slot in the middle of each phase that a device has."""
    check_device(program, device)
    stretches, end = _stretches(program, device)
    firsts = [*(one.first for one in stretches), end]
    by_phase: dict[str, list[Slot]] = {phase: [] for phase in PHASES}
    lead = next((i for i, one in enumerate(stretches) if one.backward), len(stretches))
    forwards = [i for i, one in enumerate(stretches) if one.forward]
    for index, (first, stop) in enumerate(pairwise(firsts)):
        phase = PHASES[0 if index < lead else 1 if index <= forwards[-1] else 2]
        by_phase[phase].append(Slot(phase, first, stop, is_last=stop == end))
    return [slots[len(slots) // 2] for slots in by_phase.values() if slots]


def check_device(program: Program, device: int) -> None:
    """Refuse a device that a program does not have."""
    if not 0 <= device < program.devices:
        last = program.devices - 1
        raise InputError(f"there is no device {device}; they are numbered 0 to {last}")


class _Stretch(NamedTuple):
    """Rows of a lane on which forwards or backwards, or both, overlap."""

    first: int
    last: int
    forward: bool
    backward: bool

    def with_next(self, other: _Stretch) -> _Stretch:
        return _Stretch(
            self.first,
            max(self.last, other.last),
            self.forward or other.forward,
            self.backward or other.backward,
        )


def _stretches(program: Program, device: int) -> tuple[list[_Stretch], int]:
    """What a device computes, slot by slot, and where its lane ends."""
    lane = next(
        index
        for index, one in enumerate(program.lanes)
        if one.device == device and one.stream is Stream.COMPUTE
    )
    rows = range(*program.bounds[lane : lane + 2].tolist())
    found: list[_Stretch] = []
    for (is_backward, *_), (first, last) in _extents(program, rows).items():
        one = _Stretch(first, last, not is_backward, is_backward)
        if found and first <= found[-1].last:
            found[-1] = found[-1].with_next(one)
        else:
            found.append(one)
    return _paired(found), rows.stop


def _extents(program: Program, rows: range) -> dict[_Key, tuple[int, int]]:
    """The first and last row of each forward and backward, by the first."""
    actions, found = program.actions, dict[_Key, tuple[int, int]]()
    for row in rows:
        kind = Kind(int(actions.kind[row]))
        if kind is Kind.F or kind in BACKWARDS:
            key = kind in BACKWARDS, int(actions.stage[row]), int(actions.microbatch[row])
            found[key] = found.get(key, (row, row))[0], row
    return found


def _paired(stretches: list[_Stretch]) -> list[_Stretch]:
    """With a forward and the backward after it in one slot, where the two alternate."""
    firsts = [one.first for one in stretches if one.backward]
    if not any(one.forward and one.last > firsts[0] for one in stretches if firsts):
        return stretches
    found: list[_Stretch] = []
    for one in stretches:
        is_answer = one.backward and not one.forward
        if found and is_answer and not found[-1].backward:
            found[-1] = found[-1].with_next(one)
        else:
            found.append(one)
    return found

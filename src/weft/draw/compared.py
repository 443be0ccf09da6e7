"""Compared: the same slots of a device as predicted and as measured, under each other.

warm-up                              steady
predicted  Computation     A0  E0    A1  e0  E1  a0  W0
           Communication     D0  C0  c0  D1  d0  C1  P
           Offload
measured   Computation     ...       all on one time scale
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from weft.cost.units import SECONDS, Unit, fitting
from weft.draw.bands import Band, streams
from weft.draw.legend import Entry, legend, within
from weft.draw.slots import Slot, check_device, slots_of
from weft.draw.view import View
from weft.draw.window import Panel
from weft.errors import InputError
from weft.ir.program import Program
from weft.timeline import Timeline

ROWS = {"compute": "Computation", "comm": "Communication", "copy": "Offload"}


@dataclass(frozen=True)
class Compared:
    """Both timelines of a program, and a device of it."""

    predicted: Timeline
    measured: Timeline
    device: int

    def __post_init__(self) -> None:
        if self.predicted.program.digest != self.measured.program.digest:
            raise InputError(
                f"what was predicted and what was measured are two programs:"
                f" {self.predicted.program.name} and {self.measured.program.name}; both have to be"
                f" of one run"
            )
        check_device(self.program, self.device)

    @property
    def program(self) -> Program:
        return self.measured.program

    @property
    def timelines(self) -> dict[str, Timeline]:
        """By name, from top to bottom."""
        return {"predicted": self.predicted, "measured": self.measured}

    @property
    def words(self) -> str:
        """What is shown."""
        return f"slots of device {self.device}, predicted and measured on one time scale"

    @cached_property
    def slots(self) -> list[Slot]:
        return slots_of(self.program, self.device)

    @property
    def bands(self) -> list[Band]:
        """The rows of the device, with the names that they have in Kimi K2's figure."""
        own = [band for band in streams(self.program) if band.device == self.device]
        return [band._replace(label=ROWS[band.label.split()[1]]) for band in own]

    @property
    def legend(self) -> list[Entry]:
        """What the marks mean that are in any of the slots."""
        is_within = np.zeros(len(self.program), np.bool_)
        for timeline in self.timelines.values():
            is_within |= within(timeline, (slot.window(timeline) for slot in self.slots))
        return [*legend(self.measured, self.bands, is_within)]

    def view(self, view: View) -> View:
        """The same view of this device alone."""
        return replace(view, bands_of=streams, only=(self.device,), window=None, phases=None)

    @cached_property
    def unit(self) -> Unit:
        """Of the times of slots."""
        return fitting(max(map(self.length, self.slots)), SECONDS)

    def panel(self, slot: Slot, name: str) -> Panel:
        """A slot of one of the timelines, with its length in words."""
        window = slot.window(self.timelines[name])
        return Panel(f"{name}: {self.unit.amount(window.length)}", window)

    def length(self, slot: Slot) -> float:
        """Seconds of a slot, in the timeline in which it takes longer."""
        return max(slot.window(timeline).length for timeline in self.timelines.values())

"""Marks: what a picture says of an action, whatever it is drawn with.

Knows kinds, microbatches and a device's own stages; knows neither time nor colour.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from weft.ir.kinds import Kind, Part
from weft.ir.program import Program
from weft.notation.tokens import SPELLINGS, covered

LETTERS = {
    Kind.SEND_ACTIVATION: "P",
    Kind.SEND_GRADIENT: "P",
    Kind.OFFLOAD: "O",
    Kind.ONLOAD: "L",
    Kind.REDUCE: "S",
    Kind.GATHER: "G",
}


class Mark(NamedTuple):
    """An action as drawn; `place` counts the stages of its device, in order, from 0."""

    kind: Kind
    microbatch: int | None = None
    span: int = 1
    place: int = 0
    version: int | None = None
    part: Part | None = None

    @property
    def letter(self) -> str:
        """Of a part of a layer its initial, in lower case on the way back."""
        if self.part is None:
            return LETTERS.get(self.kind) or SPELLINGS[self.kind][1] or "?"
        initial = self.part.name[0]
        return initial if self.kind in (Kind.F, Kind.R) else initial.lower()

    @property
    def number(self) -> str:
        """The microbatches it covers: 0, 0..1, or nothing."""
        return "" if self.microbatch is None else covered(self.microbatch, self.span)

    @property
    def label(self) -> str:
        """The name and the version: F4'₁."""
        return self.name + self.subscript

    @property
    def name(self) -> str:
        """Letter, microbatch, a prime for each earlier stage of the device: F4'."""
        return f"{self.letter}{self.number}" + "'" * self.place

    @property
    def subscript(self) -> str:
        """The version of the weights, where it matters."""
        return "" if self.version is None else str(self.version).translate(_SUBSCRIPTS)

    @property
    def short_label(self) -> str:
        """The same without primes; of a device's stages in turn F4, f4, Ḟ4 and ḟ4."""
        letter = self.letter
        if self.part is None and self.kind.is_compute:
            letter = letter.lower() if self.place % 2 else letter
            letter = letter.translate(_DOTTED) if self.place % 4 >= 2 else letter
        return f"{letter}{self.number}{self.subscript}"


_DOTTED = str.maketrans("FfBbIiWwRr", "ḞḟḂḃİïẆẇṘṙ")
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")

MarksOf: TypeAlias = Callable[[int], tuple[Mark] | tuple[Mark, Mark]]


def marker(program: Program, *, count_from: int = 0) -> MarksOf:
    """A function from a slot to its marks: one, or two for a pair."""
    places = {
        (device, *held): place
        for device, stages in enumerate(program.placement.held)
        for place, held in enumerate(stages)
    }

    has_versions = bool((program.actions.version > 0).any())

    def mark(index: int) -> Mark:
        action = program.actions[index]
        place = places.get((int(program.device_of[index]), action.pipe, action.stage), 0)
        version = action.version if has_versions else None
        is_part = action.kind.is_compute and action.segment is not None
        part = Part((action.segment or 0) % len(Part)) if is_part else None
        number = None if action.microbatch is None else action.microbatch + count_from
        return Mark(action.kind, number, action.span, place, version, part)

    def marks(slot: int) -> tuple[Mark] | tuple[Mark, Mark]:
        first = int(program.first_of_slot[slot])
        is_pair = first + 1 < len(program) and bool(program.actions.joined[first + 1])
        return (mark(first), mark(first + 1)) if is_pair else (mark(first),)

    return marks

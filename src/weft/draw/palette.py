"""Palettes: the colour of a mark, the same in every kind of picture.

Each kind has a hue, each stage of a device a tint of it. In characters microbatches alternate in
lightness too, so that neighbours of one kind stay apart without a line between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from weft.draw.marks import Mark
from weft.ir.kinds import Kind, Part

TINTS = (0.0, 0.45, 0.7, 0.25)  # of a device's first, second, third and fourth stage
DARKER, LIGHTER = 0.84, 0.28  # of every other microbatch
BRIGHT = 0.179  # luminance from which black is easier to read than white


class Colour(NamedTuple):
    """Red, green and blue, 0 to 255."""

    red: int
    green: int
    blue: int

    @classmethod
    def of(cls, code: str) -> Colour:
        """From six hexadecimal digits."""
        return cls(*bytes.fromhex(code))

    @property
    def code(self) -> str:
        """As SVG and HTML write it."""
        return f"#{bytes(self).hex()}"

    @property
    def luminance(self) -> float:
        """Relative luminance, as WCAG defines it."""
        parts = [part / 255 for part in self]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    @property
    def is_bright(self) -> bool:
        return self.luminance >= BRIGHT

    def scaled(self, factor: float) -> Colour:
        """Darker, for a factor below 1."""
        return Colour(*(round(part * factor) for part in self))

    def tinted(self, share: float) -> Colour:
        """With this share of white."""
        return Colour(*(round(part + (255 - part) * share) for part in self))


BLACK, WHITE = Colour(0, 0, 0), Colour(255, 255, 255)


@dataclass(frozen=True, slots=True)
class Palette:
    """A hue for each kind, and one for what travels to experts and back."""

    hues: Mapping[Kind, str]
    moved: str


# The colours of Okabe and Ito, which people see apart however they see colours.
SAFE = Palette(
    hues={
        Kind.F: "0072b2",  # blue
        Kind.B: "e69f00",  # orange
        Kind.I: "d55e00",  # vermilion
        Kind.W: "009e73",  # green
        Kind.R: "9a9a9a",
        Kind.SEND_ACTIVATION: "cc79a7",  # pink: pipeline communication
        Kind.SEND_GRADIENT: "cc79a7",
        Kind.OFFLOAD: "a596d6",
        Kind.ONLOAD: "cfc4ec",
        Kind.REDUCE: "b08d57",
        Kind.GATHER: "d9c19a",
        Kind.UPDATE: "5e5e5e",
    },
    moved="f0e442",  # yellow
)

# Those of the figures in the papers: Kimi K2 and the lectures.
SEEDS = Palette(
    hues={
        Kind.F: "4a86e8",  # blue
        Kind.B: "e5524a",  # red
        Kind.I: "e5524a",
        Kind.W: "c77db5",  # mauve
        Kind.R: "9a9a9a",
        Kind.SEND_ACTIVATION: "5bb450",  # green: pipeline communication
        Kind.SEND_GRADIENT: "5bb450",
        Kind.OFFLOAD: "cbb27a",
        Kind.ONLOAD: "e4d6b0",
        Kind.REDUCE: "3f8f8a",
        Kind.GATHER: "8fc4c0",
        Kind.UPDATE: "6a3d9a",  # purple
    },
    moved="f2d64b",  # yellow: expert communication
)

PALETTES = {"safe": SAFE, "seeds": SEEDS}
HATCHED = (Kind.W, Kind.R)  # so that they stay apart without colour


def shade(mark: Mark, palette: Palette = SAFE) -> Colour:
    """The colour of a mark where lines keep neighbours apart."""
    if mark.part in (Part.DISPATCH, Part.COMBINE):
        return Colour.of(palette.moved)
    hue = Colour.of(palette.hues.get(mark.kind, palette.hues[Kind.UPDATE]))
    return hue.tinted(TINTS[mark.place % len(TINTS)])


def colour(mark: Mark, palette: Palette = SAFE) -> Colour:
    """The colour of a mark between neighbours, which differ in lightness."""
    plain = shade(mark, palette)
    if mark.microbatch is None or mark.microbatch % 2 == 0:
        return plain
    return plain.tinted(LIGHTER) if plain.is_bright else plain.scaled(DARKER)


def ink(background: Colour) -> Colour:
    """What to write with on a colour."""
    return BLACK if background.is_bright else WHITE


def mixed(colours: Sequence[Colour]) -> Colour:
    """The mean of some colours."""
    return Colour(*(round(sum(parts) / len(colours)) for parts in zip(*colours, strict=True)))

"""Palette: the colour of a mark, the same in every kind of picture.

Each kind has a hue, each stage of a device a shade of it. Microbatches alternate in lightness,
so that neighbours of one kind stay apart without a line between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.draw.marks import Mark
from weft.ir.kinds import Kind, Part


class Colour(NamedTuple):
    """Red, green and blue, 0 to 255."""

    red: int
    green: int
    blue: int

    @classmethod
    def of(cls, code: str) -> Colour:
        """From six hexadecimal digits."""
        return cls(*bytes.fromhex(code))

    def scaled(self, factor: float) -> Colour:
        """Darker, for a factor below 1."""
        return Colour(*(round(part * factor) for part in self))


INK = Colour.of("161a20")  # readable on every shade
ODD = 0.88

SHADES: dict[Kind, tuple[str, ...]] = {
    Kind.F: ("6ea0e6", "86cdea", "74c6b8", "b3bdf2"),  # blue, sky, teal, lavender
    Kind.B: ("f2a654", "ea7f66", "dd92b6", "cfae7c"),  # orange, coral, pink, tan
    Kind.I: ("f8d595", "f4b3a4", "f0cadd", "e6d6b4"),  # the same, lighter
    Kind.W: ("82bf86", "b4d07a", "6fb8a4", "d2dfa6"),  # green, lime, sea, straw
    Kind.R: ("b4b9c1", "c6c2bb", "a8b5b5", "c2b8c4"),  # greys
}
COPIES: dict[Kind, tuple[str, ...]] = {
    Kind.SEND_ACTIVATION: ("5fc4b0",),  # pipeline communication
    Kind.SEND_GRADIENT: ("5fc4b0",),
    Kind.OFFLOAD: ("b9a5dd",),
    Kind.ONLOAD: ("d6b8e6",),
}
MOVED = "f0dc63"  # expert communication
OTHERS = ("c3a6e0",)


def colour(mark: Mark) -> Colour:
    """The colour of a mark."""
    is_moved = mark.part in (Part.DISPATCH, Part.COMBINE)
    shades = (MOVED,) if is_moved else (SHADES | COPIES).get(mark.kind, OTHERS)
    shade = Colour.of(shades[mark.place % len(shades)])
    is_odd = mark.microbatch is not None and mark.microbatch % 2 == 1
    return shade.scaled(ODD) if is_odd else shade


def mixed(colours: Sequence[Colour]) -> Colour:
    """The mean of some colours."""
    return Colour(*(round(sum(parts) / len(colours)) for parts in zip(*colours, strict=True)))

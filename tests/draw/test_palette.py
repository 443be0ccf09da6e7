"""The palette: every shade differs from its neighbours, and carries a label."""

from __future__ import annotations

from itertools import combinations

import pytest

from weft.draw.marks import Mark
from weft.draw.palette import PALETTES, SAFE, SEEDS, Colour, Palette, colour, ink, mixed, shade
from weft.ir.kinds import Kind, Part

COMPUTED = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.R)
MARKS = [
    Mark(kind, microbatch, place=p) for kind in COMPUTED for microbatch in (0, 1) for p in (0, 1)
]
EVERY_PALETTE = pytest.mark.parametrize("palette", PALETTES.values(), ids=PALETTES.keys())


def contrast(one: Colour, other: Colour) -> float:
    """As WCAG defines it."""
    low, high = sorted((one.luminance, other.luminance))
    return (high + 0.05) / (low + 0.05)


@EVERY_PALETTE
@pytest.mark.parametrize("mark", [*MARKS, *map(Mark, Kind), Mark(Kind.F, part=Part.DISPATCH)])
def test_ink_is_readable_on_every_shade(mark: Mark, palette: Palette) -> None:
    for background in (shade(mark, palette), colour(mark, palette)):
        assert contrast(ink(background), background) > 4.5


def test_neighbours_share_their_ink() -> None:
    for kind in COMPUTED:
        for place in range(4):
            even, odd = (colour(Mark(kind, number, place=place)) for number in (0, 1))
            assert ink(even) == ink(odd)


def test_no_two_marks_look_alike() -> None:
    for one, other in combinations(MARKS, 2):
        distance = sum(abs(a - b) for a, b in zip(colour(one), colour(other), strict=True))
        assert distance > 20, f"{one} and {other}"


def seen_without_red(shade: Colour) -> tuple[float, float]:
    """What eyes see that are blind to red and green: lightness, and blue against yellow."""
    return 255 * shade.luminance**0.5, shade.blue - (shade.red + shade.green) / 2


def test_the_usual_palette_is_distinct_without_red_and_green() -> None:
    kinds = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.SEND_ACTIVATION, Kind.UPDATE)
    for one, other in combinations(kinds, 2):
        pairs = zip(*(seen_without_red(shade(Mark(kind))) for kind in (one, other)), strict=True)
        assert sum(abs(a - b) for a, b in pairs) > 35, f"{one.name} and {other.name}"


def test_the_papers_palette_has_the_papers_colours() -> None:
    def strongest(mark: Mark) -> str:
        named = zip(shade(mark, SEEDS), ("red", "green", "blue"), strict=True)
        return max(named)[1]

    assert strongest(Mark(Kind.F)) == "blue"
    assert strongest(Mark(Kind.B)) == strongest(Mark(Kind.I)) == "red"
    assert strongest(Mark(Kind.SEND_GRADIENT)) == "green"
    red, green, blue = shade(Mark(Kind.F, part=Part.DISPATCH), SEEDS)
    assert min(red, green) > 2 * blue  # yellow
    distinct = {shade(Mark(kind), SEEDS) for kind in (Kind.F, Kind.B, Kind.W, Kind.UPDATE)}
    assert len(distinct) == 4


def test_a_kind_without_a_hue_has_a_colour_too() -> None:
    assert Kind.FREE not in SAFE.hues
    assert colour(Mark(Kind.FREE)) not in {colour(mark) for mark in MARKS}


def test_colours_mix_to_their_mean() -> None:
    assert mixed([Colour(0, 0, 0), Colour(255, 100, 0)]) == Colour(128, 50, 0)

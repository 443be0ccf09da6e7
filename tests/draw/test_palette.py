"""The palette: every shade can be told from its neighbours, and carries a label."""

from __future__ import annotations

from itertools import combinations

import pytest

from weft.draw.marks import Mark
from weft.draw.palette import INK, SHADES, Colour, colour, mixed
from weft.ir.kinds import Kind

MARKS = [
    Mark(kind, microbatch, place=p) for kind in SHADES for microbatch in (0, 1) for p in (0, 1)
]


def luminance(shade: Colour) -> float:
    """Relative luminance, as WCAG defines it."""
    parts = [part / 255 for part in shade]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("mark", MARKS)
def test_ink_is_readable_on_every_shade(mark: Mark) -> None:
    assert (luminance(colour(mark)) + 0.05) / (luminance(INK) + 0.05) > 4.5


def test_no_two_marks_look_alike() -> None:
    for one, other in combinations(MARKS, 2):
        distance = sum(abs(a - b) for a, b in zip(colour(one), colour(other), strict=True))
        assert distance > 20, f"{one} and {other}"


def test_a_kind_without_shades_has_a_colour_too() -> None:
    assert colour(Mark(Kind.UPDATE)) not in {colour(mark) for mark in MARKS}


def test_colours_mix_to_their_mean() -> None:
    assert mixed([Colour(0, 0, 0), Colour(255, 100, 0)]) == Colour(128, 50, 0)

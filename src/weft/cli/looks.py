"""Looks: the options of what is drawn and how."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.cli.options import Command, Flag, bundled, flags
from weft.draw.look import THEMES
from weft.draw.palette import PALETTES
from weft.request.values import FILE, SWITCH, TEXT, Bundle, Numbers, OneOf, Whole, given


class _Stretch:
    words = "a stretch of time like 0:10, 5: or :20"

    def read(self, given: Any) -> tuple[float, float]:
        if isinstance(given, tuple):
            return given
        start, colon, end = given.partition(":")
        times = float(start or 0), float(end or "inf")
        if not colon or not 0 <= times[0] < times[1]:
            raise ValueError
        return times


@dataclass(frozen=True, slots=True)
class Looks(Bundle):
    """The picture that was asked for; None where nothing was."""

    output: Path | None = given(FILE)
    size: str | None = given(TEXT)
    theme: str | None = given(OneOf(tuple(THEMES)))
    palette: str = given(OneOf(tuple(PALETTES)), "safe")
    has_memory: bool = given(SWITCH, False)
    only: tuple[int, ...] | None = given(Numbers(int, "0,3"))
    window: tuple[float, float] | None = given(_Stretch())
    phases: int | None = given(Whole(least=0))
    count_from: int = given(Whole(least=0, most=1), 0)


LOOKS = flags(
    Looks,
    output=Flag(
        "Write to a file, in the format of its ending: .html, .svg, .png or .txt.", "FILE", "-o"
    ),
    size=Flag(
        "Size of an SVG or PNG: 800, 800x300, 180mm, 7x3in.  [default: what labels need]", "W[xH]"
    ),
    theme=Flag("Background of an SVG or PNG.  [default: light]"),
    palette=Flag(
        "Colours that are safe for all eyes, or those of the papers' figures.",
    ),
    has_memory=Flag("Show what each device holds, in an SVG or PNG."),
    only=Flag("Only these devices.  [default: all]", "D,D,..."),
    window=Flag("Only this time, in seconds or units of cost.  [default: all]", "FROM:TO"),
    phases=Flag(
        "Warm-up, steady state and cool-down of this device, three microbatches of each.", "D"
    ),
    count_from=Flag("The number of the first microbatch.", "0|1"),
)


def looking(command: Command) -> Command:
    """Add the options of a picture; the command gets them as `looks`."""
    return bundled("looks", Looks, LOOKS)(command)

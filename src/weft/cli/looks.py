"""Looks: the options of what is drawn and how."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from weft.cli.options import Command, bundled, count, listed
from weft.draw.look import THEMES
from weft.draw.palette import PALETTES


@dataclass(frozen=True, slots=True)
class Looks:
    """The picture that was asked for; None where nothing was."""

    output: Path | None = None
    size: str | None = None
    theme: str | None = None
    palette: str = "safe"
    has_memory: bool = False
    only: tuple[int, ...] | None = None
    window: tuple[float, float] | None = None
    phases: int | None = None
    count_from: int = 0


def _window(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    if value is None:
        return None
    start, colon, end = value.partition(":")
    try:
        times = float(start or 0), float(end or "inf")
    except ValueError:
        times = 0.0, 0.0
    if not colon or not 0 <= times[0] < times[1]:
        raise click.BadParameter(f"{value[:40]!r} is no stretch of time like 0:10, 5: or :20.")
    return times


LOOKS = (
    click.option(
        *("-o", "--output"),
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="To a file, in the form that its name ends in: .html, .svg, .png or .txt.",
    ),
    click.option(
        "--size",
        metavar="W[xH]",
        help="Of an SVG or PNG: 800, 800x300, 180mm, 7x3in.  [default: what labels need]",
    ),
    click.option(
        "--theme", type=click.Choice(list(THEMES)), help="Paper of an SVG or PNG.  [default: light]"
    ),
    click.option(
        "--palette",
        type=click.Choice(list(PALETTES)),
        default="safe",
        show_default=True,
        help="Colours that all eyes tell apart, or those of the papers' figures.",
    ),
    click.option(
        "--memory", "has_memory", is_flag=True, help="In an SVG or PNG: what each device holds."
    ),
    listed(
        "--only", of=int, metavar="D,D,...", example="0,3", help="These devices.  [default: all]"
    ),
    click.option(
        "--window",
        callback=_window,
        metavar="FROM:TO",
        help="This stretch of time, in seconds or units of cost.  [default: all]",
    ),
    count(
        "--phases",
        metavar="D",
        least=0,
        help="Warm-up, steady state and cool-down of this device, three microbatches of each.",
    ),
    count(
        "--count-from",
        metavar="0|1",
        least=0,
        most=1,
        default=0,
        help="The number of the first microbatch.  [default: 0]",
    ),
)


def looking(command: Command) -> Command:
    """Add the options of a picture; the command gets them as `looks`."""
    return bundled("looks", Looks, LOOKS)(command)

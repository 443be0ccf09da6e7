"""Look: how large a picture is, how bright its paper, and what stands below the rows."""

from __future__ import annotations

from dataclasses import dataclass

from weft.draw.palette import Colour
from weft.draw.size import FREE, Size


@dataclass(frozen=True, slots=True)
class Theme:
    """The colours of everything that is not an action."""

    paper: Colour
    text: Colour
    faint: Colour  # axes and notes
    idle: Colour
    level: Colour  # of memory


LIGHT = Theme(
    paper=Colour.of("ffffff"),
    text=Colour.of("1a1d21"),
    faint=Colour.of("5c636b"),
    idle=Colour.of("eceef0"),
    level=Colour.of("7c8896"),
)
DARK = Theme(
    paper=Colour.of("14171b"),
    text=Colour.of("eceff2"),
    faint=Colour.of("a3abb4"),
    idle=Colour.of("262b31"),
    level=Colour.of("8895a5"),
)
THEMES = {"light": LIGHT, "dark": DARK}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Size, theme, and whether memory over time is drawn under each device."""

    size: Size = FREE
    theme: Theme = LIGHT
    has_memory: bool = False


PLAIN = Look()

"""Elements: SVG as text, written by hand. Knows numbers and quotes, nothing of timelines."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

FONT = "Aileron, Helvetica, Arial, 'DejaVu Sans', sans-serif"
ADVANCE = 0.6  # of the font size: what capitals and digits take, or less
NARROW, SMALL, WIDE = frozenset(" .,:;'|()ijlft"), 0.6, frozenset("mwMW%@")


def element(name: str, *content: str, **attributes: object) -> str:
    """An element; underscores in the names of attributes become dashes."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{''.join(content)}</{name}>" if content else f"<{name}{written}/>"


def group(content: Iterable[str], **attributes: object) -> str:
    """A group, or nothing where there is nothing in it."""
    inside = list(content)
    return element("g", "\n", *(f"{line}\n" for line in inside), **attributes) if inside else ""


def rectangle(x: float, y: float, width: float, height: float, **attributes: object) -> str:
    return element("rect", x=x, y=y, width=width, height=height, **attributes)


def text(
    words: str, x: float, y: float, *, subscript: str = "", **attributes: str | float | None
) -> str:
    """Words, and digits below their line."""
    below = element("tspan", subscript, dy="0.25em", font_size="72%") if subscript else ""
    return element("text", escape(words, quote=False), below, x=x, y=y, **attributes)


def edge(halo: str | None) -> dict[str, str]:
    """Attributes that keep letters readable on hatching: a line of this colour around them."""
    if halo is None:
        return {}
    around = {"stroke": halo, "stroke_width": "3", "stroke_linejoin": "round"}
    return {**around, "paint_order": "stroke"}


def width_of(words: str, size: float, *, subscript: str = "") -> float:
    """How wide words come out at most, in the fonts that are likely."""
    return size * (sum(map(_advance, words)) + 0.72 * sum(map(_advance, subscript)))


def _advance(letter: str) -> float:
    if letter in NARROW:
        return 0.34
    if letter in WIDE:
        return 0.9
    return SMALL if letter.islower() else ADVANCE


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{round(value, 2):g}" if abs(value) < 1e5 else f"{value:.0f}"
    return escape(str(value))

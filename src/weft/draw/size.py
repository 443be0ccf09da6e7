"""Size: how large a picture is, as people write it: 800, 800x300, 180mm, 7x3in."""

from __future__ import annotations

import re
from dataclasses import dataclass

from weft.errors import InputError

PER_INCH = 96.0  # pixels, as CSS counts them
PRINTED = 300.0  # pixels of a PNG to an inch of paper
UNITS = {"px": 1.0, "pt": PER_INCH / 72, "mm": PER_INCH / 25.4, "cm": PER_INCH / 2.54}
UNITS["in"] = PER_INCH
LEAST, MOST = 40.0, 20_000.0  # pixels

_FORM = re.compile(r"(\d+(?:\.\d+)?)(px|pt|mm|cm|in)?(?:[x×](\d+(?:\.\d+)?)(px|pt|mm|cm|in)?)?")


@dataclass(frozen=True, slots=True)
class Size:
    """Width and height in pixels of CSS, 96 to an inch; None where the picture decides."""

    width: float | None = None
    height: float | None = None
    unit: str = "px"

    @classmethod
    def of(cls, text: str) -> Size:
        """From `800`, `800x300`, `180mm`, `7x3in` or `7inx3in`."""
        found = _FORM.fullmatch(text.strip().lower())
        if found is None:
            raise InputError(
                f"{text[:40]!r} is no size; write 800, 800x300, 180mm or 7x3in"
                f" (units: {', '.join(UNITS)})"
            )
        width, own, height, last = found.groups()
        unit = own or last or "px"
        sides = [_pixels(text, side, each or unit) for side, each in ((width, own), (height, last))]
        return cls(sides[0], sides[1], unit)

    @property
    def zoom(self) -> float:
        """Pixels of a PNG to one of these: sharp on screens where no pixels were asked for."""
        if self.unit != "px":
            return PRINTED / PER_INCH
        return 1.0 if self.width else 2.0

    def written(self, pixels: float) -> str:
        """A length in the unit of the size, as SVG writes it."""
        return f"{round(pixels / UNITS[self.unit], 3):g}{'' if self.unit == 'px' else self.unit}"


def _pixels(text: str, side: str | None, unit: str) -> float | None:
    if side is None:
        return None
    pixels = float(side) * UNITS[unit]
    if not LEAST <= pixels <= MOST:
        raise InputError(f"{text}: a side is {LEAST:g} to {MOST:,.0f} pixels long")
    return pixels


FREE = Size()

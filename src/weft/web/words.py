"""Words and colours: how the page names and paints what it shows, as every other picture does."""

from __future__ import annotations

from weft.draw.legend import PART_WORDS, WORDS
from weft.draw.marks import LETTERS, Mark
from weft.draw.palette import HATCHED, PALETTES, TINTS, Palette, colour
from weft.ir.kinds import Kind, Part
from weft.notation.tokens import SPELLINGS
from weft.timeline.idle import Cause


def words() -> dict[str, object]:
    """Kinds, parts, causes and palettes, as JSON takes them."""
    return {
        "kinds": [_kind(kind) for kind in Kind],
        "parts": [_part(part) for part in Part],
        "causes": {cause.value: cause.meaning for cause in Cause},
        "palettes": {name: _colours(palette) for name, palette in PALETTES.items()},
    }


def _part(part: Part) -> dict[str, object]:
    return {
        "word": PART_WORDS[part],
        "letter": part.name[0],
        "is_moved": part in (Part.DISPATCH, Part.COMBINE),
    }


def _kind(kind: Kind) -> dict[str, object]:
    prefix, letter = SPELLINGS[kind]
    return {
        "name": kind.name,
        "word": WORDS.get(kind, kind.name.lower().replace("_", " ")),
        "letter": LETTERS.get(kind) or letter or "×",
        "prefix": prefix,
        "token": letter,
        "is_hatched": kind in HATCHED,
    }


def _colours(palette: Palette) -> dict[str, object]:
    """For each kind and each of a device's stages, that of even and of odd microbatches."""
    places = range(len(TINTS))
    return {
        "kinds": [[_pair(Mark(kind, place=place), palette) for place in places] for kind in Kind],
        "moved": _pair(Mark(Kind.F, part=Part.DISPATCH), palette),
    }


def _pair(mark: Mark, palette: Palette) -> list[str]:
    return [colour(mark._replace(microbatch=number), palette).code for number in (0, 1)]

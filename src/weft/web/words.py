"""Words: how the page names what it shows, the same as every other picture."""

from __future__ import annotations

from weft.draw.caption import PART_WORDS, WORDS
from weft.draw.marks import LETTERS
from weft.ir.kinds import Kind, Part
from weft.notation.tokens import FORMS
from weft.web.palettes import COLOURS, MOVED, PALETTES

MEANINGS = {
    "warm-up": "nothing has reached the device yet",
    "value": "another device has not computed what comes next",
    "wire": "it is computed and on its way",
    "memory": "something else is ready and would not fit",
    "order": "something else is ready, but the program runs another first",
    "optimizer": "the weights are being updated",
    "cool-down": "all its work is done, the step is not",
}


def words() -> dict[str, object]:
    """Kinds, parts, causes and palettes, as JSON takes them."""
    return {
        "kinds": [_kind(kind) for kind in Kind],
        "parts": [{"word": PART_WORDS[part], "letter": part.name[0]} for part in Part],
        "moved": MOVED,
        "causes": MEANINGS,
        "palettes": PALETTES,
    }


def _kind(kind: Kind) -> dict[str, object]:
    prefix, letter = FORMS[kind]
    return {
        "name": kind.name,
        "word": WORDS.get(kind, kind.name.lower().replace("_", " ")),
        "letter": LETTERS.get(kind) or letter or "×",
        "prefix": prefix,
        "token": letter,
        "colour": COLOURS[kind],
    }

"""Damage: a text with something wrong, as chance has it."""

from __future__ import annotations

import random
import re

BITS = ("9", "-", "1e999", "NaN", "\0", "[", "{", "|", "\n", ",", '"', "@", "0", " ", "#", "..",
        "device", "7777777", "send:", "}", "é", "\U0001f600")  # fmt: skip
NUMBERS = ("0", "1", "2", "3", "5", "64", "999", "999999999", "-1", "1.5")


def damaged(chance: random.Random, text: str) -> str:
    """Cut off, a line lost, doubled or moved, another number, or bytes put in and taken out."""
    match chance.randrange(5):
        case 0:
            return text[: chance.randrange(len(text))]
        case 1:
            lines = text.split("\n")
            lines.insert(chance.randrange(len(lines)), lines.pop(chance.randrange(len(lines))))
            return "\n".join(lines[: chance.randrange(1, len(lines) + 1)])
        case 2:
            lines = text.split("\n")
            del lines[chance.randrange(len(lines))]
            return "\n".join(lines)
        case 3:
            number = chance.choice(list(re.finditer(r"\d+", text)))
            return text[: number.start()] + chance.choice(NUMBERS) + text[number.end() :]
        case _:
            for _ in range(chance.randrange(1, 4)):
                place = chance.randrange(len(text) + 1)
                rest = text[place + chance.randrange(4) :]
                text = text[:place] + chance.choice(BITS) + rest
            return text

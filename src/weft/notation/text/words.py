"""The words of a line: names, counts, costs and choices, both ways."""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import TypeVar

from weft.errors import InputError
from weft.notation.limits import MOST
from weft.notation.places import shown

Choice = TypeVar("Choice", bound=Enum)

_COUNT = re.compile("[0-9]+")
_COST = re.compile(r"[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,4})?")


def escaped(name: str) -> str:
    r"""A name as one word: spaces, # and all beyond ASCII as in JSON, \u0020."""
    return re.sub(r"[\s#]", lambda match: f"\\u{ord(match[0]):04x}", json.dumps(name)[1:-1])


def unescaped(word: str) -> str:
    """The name that a word stands for."""
    try:
        name: str = json.loads(f'"{word}"')
        name.encode()  # refuses half a character
    except ValueError:
        raise InputError(
            f'{shown(word)} is no name; its \\ and " are written as in JSON: \\\\ and \\"'
        ) from None
    return name


def counts(words: list[str], example: str, *, exactly: int) -> list[int]:
    """As many whole numbers as belong here."""
    if len(words) != exactly:
        raise InputError(f"{len(words)} words where {exactly} belong; it reads `{example}`")
    for word in words:
        if not _COUNT.fullmatch(word):
            raise InputError(f"{shown(word)} is not a whole number; it reads `{example}`")
        if len(word) > len(str(MOST)):
            raise InputError(f"{shown(word)} is more than the {MOST:,} that Weft reads")
    return [int(word) for word in words]


def cost(word: str) -> float:
    """A finite number that is not negative; whole where it is written so."""
    if not _COST.fullmatch(word):
        raise InputError(f"{shown(word)} is no cost; it reads `cost=2` or `cost=0.5`")
    number = int(word) if word.isdigit() else float(word)
    if number > 1e300:
        raise InputError(f"{shown(word)} is no finite cost")
    return number


def choice(choices: type[Choice], word: str) -> Choice:
    """The member that a word names."""
    try:
        return choices(word)
    except ValueError:
        known = ", ".join(str(member.value) for member in choices)
        raise InputError(f"{shown(word)} where one of {known} belongs") from None

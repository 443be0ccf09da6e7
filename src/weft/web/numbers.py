"""Numbers and texts out of a question, read with suspicion; InputError says what is wrong."""

from __future__ import annotations

from collections.abc import Mapping

from weft.errors import InputError

MOST_LETTERS = 80
MOST = 1e15


def text(given: Mapping[str, object], name: str) -> str:
    """A short text; empty where there is none."""
    value = given.get(name, "")
    if not isinstance(value, str) or len(value) > MOST_LETTERS:
        raise InputError(f"{_words(name)} is a short text")
    return value


def count(given: Mapping[str, object], name: str, most: int, usual: int = 1) -> int:
    """A whole number from 1 up; the usual one where there is none."""
    value = given.get(name, usual)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InputError(f"{_words(name)}: a whole number from 1 to {most}")
    return value


def amount(given: Mapping[str, object], name: str, usual: float) -> float:
    """A number from 0 up."""
    return _amount(given.get(name, usual), name)


def amounts(given: Mapping[str, object], name: str, most: int) -> tuple[float, ...]:
    """A list of numbers from 0 up, not too long; empty where there is none."""
    values = given.get(name, [])
    if not isinstance(values, list) or len(values) > most:
        raise InputError(f"{_words(name)}: a list of at most {most} numbers")
    return tuple(_amount(value, name) for value in values)


def _amount(value: object, name: str) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MOST:  # type: ignore[operator]
        raise InputError(f"{_words(name)}: a number from 0 to {MOST:.0e}")
    return float(value)  # type: ignore[arg-type]


def _words(name: str) -> str:
    return name.replace("_", " ")

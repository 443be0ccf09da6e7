"""Reading JSON: a value and its path, asked for what it should be.

Refuses what no document of Weft holds: NaN, infinities, a key twice, a key that nobody knows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from weft.errors import InputError, NotationError
from weft.notation.limits import MOST, check_values
from weft.notation.places import at, shown

VERSION = 1

Choice = TypeVar("Choice", bound=Enum)


def parse(text: str) -> Node:
    """The root of a JSON text."""
    check_values(text)
    try:
        return Node(json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique))
    except json.JSONDecodeError as error:
        raise NotationError(f"not JSON: {_reason(error)}", line=error.lineno) from None
    except RecursionError:
        raise NotationError("not a document of Weft: it is nested too deeply") from None
    except ValueError:  # Python limits the digits of an integer
        raise NotationError("a number has too many digits") from None


def _reason(error: json.JSONDecodeError) -> str:
    """Why a text is not JSON; of one that was cut off, just that."""
    if error.msg.startswith("Unterminated") or error.pos >= len(error.doc.rstrip()):
        return "it ends too early; was it written completely?"
    return f"{error.msg.removesuffix(' at')} at column {error.colno}"


def _no_constant(name: str) -> object:
    raise InputError(f"{name} is no number that JSON knows")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for key, value in pairs:
        if key in members:
            raise InputError(f"{shown(key)} stands twice in one object")
        members[key] = value
    return members


@dataclass(frozen=True, slots=True)
class Node:
    """A JSON value and where it stands, as in lanes[3].device."""

    value: object
    path: str = ""

    def place(self) -> AbstractContextManager[None]:
        """A context in which refusals name this place."""
        return at(self.path)

    def wrong(self, wanted: str) -> NotationError:
        """What to raise where something else belongs."""
        match self.value:
            case dict():
                given = "an object"
            case list():
                given = "a list"
            case str():
                given = shown(self.value)
            case _:
                given = shown(json.dumps(self.value)).strip("'")
        reason = f"{given} where {wanted} belongs"
        return NotationError(f"{self.path}: {reason}" if self.path else reason)

    def members(self, known: Collection[str], needed: Collection[str] = ()) -> dict[str, Node]:
        """The members of an object that has all the needed keys and no unknown one."""
        members = self.members_of_any_name()
        with self.place():
            for key in members:
                if key not in known:
                    raise InputError(
                        f"{shown(key)} is not a key here; known are {', '.join(known)}"
                    )
            for key in needed:
                if key not in members:
                    raise InputError(f"{key} is missing")
        return members

    def members_of_any_name(self) -> dict[str, Node]:
        """The members of an object whose keys are its own choice."""
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        prefix = f"{self.path}." if self.path else ""
        return {key: Node(value, f"{prefix}{key}") for key, value in self.value.items()}

    def document(
        self, format: str, known: Collection[str], needed: Collection[str] = ()
    ) -> dict[str, Node]:
        """The members of an object that names this format, in the version that Weft reads."""
        members = self.members(("format", "version", *known), ("format", "version", *needed))
        if members["format"].text() != format:
            raise members["format"].wrong(f'"{format}"')
        if members["version"].count() != VERSION:
            raise members["version"].wrong(f"{VERSION}, the version that this Weft reads,")
        return members

    def items(self) -> Iterator[Node]:
        """The items of a list, one after the other: it may be long."""
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        return (Node(item, f"{self.path}[{index}]") for index, item in enumerate(self.value))

    def text(self) -> str:
        if not isinstance(self.value, str) or not _is_unicode(self.value):
            raise self.wrong("a text")
        return self.value

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.wrong("true or false")
        return self.value

    def count(self, *, least: int = 0) -> int:
        if type(self.value) is not int or not least <= self.value <= MOST:
            raise self.wrong(f"a whole number from {least} to {MOST:,}")
        return self.value

    def counts(self, *, least: int = 0, exactly: int | None = None) -> list[int]:
        """A list of whole numbers."""
        values = self._list(exactly)
        if set(map(type, values)) - {int} or not _are_within(values, least):
            for item in self.items():
                item.count(least=least)
        return values

    def texts(self, *, exactly: int) -> list[str]:
        """A list of texts."""
        values = self._list(exactly)
        if set(map(type, values)) - {str}:
            for item in self.items():
                item.text()
        return values

    def number(self) -> float:
        """A finite number."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.wrong("a number")
        if not _is_finite(self.value):
            raise self.wrong("a finite number")
        return float(self.value)

    def numbers(self, *, exactly: int | None = None) -> list[float]:
        """A list of finite numbers."""
        values = self._list(exactly)
        if set(map(type, values)) - {int, float} or not all(map(_is_finite, values)):
            for item in self.items():
                item.number()
        return [float(value) for value in values]

    def choice(self, choices: type[Choice]) -> Choice:
        """The member that a text names."""
        try:
            return choices(self.text())
        except ValueError:
            known = ", ".join(str(member.value) for member in choices)
            raise self.wrong(f"one of {known}") from None

    def plain(self, *, depth: int) -> object:
        """Whatever it is, nested at most so deep, with finite numbers and whole characters."""
        match self.value:
            case dict() | list() if not depth:
                raise self.wrong("a plain value")
            case dict():
                members = self.members_of_any_name().items()
                return {key: member.plain(depth=depth - 1) for key, member in members}
            case list():
                return [item.plain(depth=depth - 1) for item in self.items()]
            case str():
                return self.text()
            case int() | float() if not isinstance(self.value, bool):
                self.number()
                return self.value
            case _:
                return self.value

    def _list(self, exactly: int | None) -> list[Any]:
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        if exactly is not None and len(self.value) != exactly:
            raise NotationError(f"{self.path}: {len(self.value)} items where {exactly} belong")
        return self.value


def _is_unicode(text: str) -> bool:
    """JSON can write half a character, \\ud800, which nothing can print."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _are_within(values: Sequence[int], least: int) -> bool:
    return least <= min(values, default=least) and max(values, default=least) <= MOST


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False

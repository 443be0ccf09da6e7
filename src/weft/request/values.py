"""Values: what may come from outside, each kind checked in one place.

A field of a bundle says what it takes; whoever builds the bundle, from flags, from a file or from
what a page sends, gets the same value or the same refusal: devices: 0 is not a whole number ...
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

from weft.cost import checks
from weft.cost.checks import quoted
from weft.errors import InputError

MOST_COUNT = checks.MOST
MOST_AMOUNT = 1e100  # sums of these stay finite
MOST_LETTERS = 4096
KEY = "value"  # of a field's metadata

_BYTES = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "KB": 1e3, "MB": 1e6, "GB": 1e9}
_COUNTS = {"k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_COUNT = re.compile(rf"(\d+(?:_\d+)*)({'|'.join(_COUNTS)})?", re.ASCII)
_SIZE = re.compile(rf"(\d+(?:\.\d*)?(?:e\+?\d+)?) ?({'|'.join(_BYTES)})?")

Taken = TypeVar("Taken")


class Value(Protocol):
    """What a field takes, in words; `read` gives the value, or raises ValueError."""

    @property
    def words(self) -> str: ...

    def read(self, given: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `least` to `most`."""

    least: int = 1
    most: int = MOST_COUNT

    @property
    def words(self) -> str:
        return f"a whole number from {self.least:,} to {self.most:,}"

    def read(self, given: Any) -> int:
        if type(given) is int and self.least <= given <= self.most:
            return given
        raise ValueError


@dataclass(frozen=True, slots=True)
class LargeCount:
    """A whole number from 1 up, perhaps with a unit: 4Mi is 4 times 2**20."""

    words = f"{Whole().words}, as it is or in {', '.join(_COUNTS)}: 4194304, 4_194_304 or 4Mi"

    def read(self, given: Any) -> int:
        found = _COUNT.fullmatch(given) if isinstance(given, str) else None
        if found is None:
            return Whole().read(given)
        return Whole().read(int(found[1]) * _COUNTS.get(found[2], 1))


@dataclass(frozen=True, slots=True)
class Amount:
    """A number from 0 to `most`, without the end that is `excluded`."""

    most: float = MOST_AMOUNT
    excluded: float | None = None

    @property
    def words(self) -> str:
        if self.most == MOST_AMOUNT:
            return "a finite number from 0 up"
        return f"a number from 0 to {self.most:g}, without {self.excluded:g}"

    def read(self, given: Any) -> float:
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if is_number and 0 <= given <= self.most and given != self.excluded:
            return float(given)
        raise ValueError


@dataclass(frozen=True, slots=True)
class Text:
    """A text that is not too long."""

    most: int = MOST_LETTERS
    words = "a short text"

    def read(self, given: Any) -> str:
        if isinstance(given, str) and len(given) <= self.most:
            return given
        raise ValueError


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some names."""

    names: tuple[str, ...]

    @property
    def words(self) -> str:
        return f"one of {', '.join(self.names)}"

    def read(self, given: Any) -> str:
        return self.names[self.names.index(given)]


@dataclass(frozen=True, slots=True)
class NameOrFraction:
    """One of some names, or a fraction; a whole number might mean something else."""

    names: tuple[str, ...]

    @property
    def words(self) -> str:
        return f"one of {', '.join(self.names)}, or a fraction with a point, from 0.0 to 1.0"

    def read(self, given: Any) -> str | float:
        if given in self.names:
            return str(given)
        if isinstance(given, int) or (isinstance(given, str) and "." not in given):
            raise ValueError
        return Amount(most=1).read(float(given) if isinstance(given, str) else given)


@dataclass(frozen=True, slots=True)
class Switch:
    """Yes or no."""

    words = "true or false"

    def read(self, given: Any) -> bool:
        if isinstance(given, bool):
            return given
        raise ValueError


@dataclass(frozen=True, slots=True)
class File:
    """Where a file is."""

    words = "the name of a file"

    def read(self, given: Any) -> Path:
        return Path(given)


@dataclass(frozen=True, slots=True)
class Numbers:
    """At most `most` numbers from 0 up, all of one type: in a list, or with commas."""

    of: type[int] | type[float]
    example: str
    most: int = 65_536

    @property
    def words(self) -> str:
        return f"a list of at most {self.most:,} numbers, like {self.example}"

    def read(self, given: Any) -> tuple[float, ...]:
        found = given.split(",") if isinstance(given, str) else given
        if isinstance(found, list | tuple) and len(found) <= self.most:
            numbers = tuple(self.of(one) for one in found)
            if all(0 <= number <= MOST_AMOUNT for number in numbers):
                return numbers
        raise ValueError


@dataclass(frozen=True, slots=True)
class Bytes:
    """A number of bytes, from 0 up, perhaps with a unit: 80GiB."""

    words = f"a number of bytes from 0 up, as it is or in {', '.join(_BYTES)}"

    def read(self, given: Any) -> float:
        found = _SIZE.fullmatch(given) if isinstance(given, str) else None
        if found is None:
            return Amount().read(given)
        return Amount().read(float(found[1])) * _BYTES.get(found[2], 1.0)


COUNT, AMOUNT, TEXT, SWITCH, FILE = Whole(), Amount(), Text(), Switch(), File()


def given(value: Value, default: Any = None) -> Any:
    """A field of a bundle that takes such a value; None where nothing was given."""
    return field(default=default, metadata={KEY: value})


class Bundle:
    """Values that belong together, read by what their fields take; a dataclass inherits this."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for item in fields(self):  # type: ignore[arg-type]
            found = getattr(self, item.name)
            if KEY in item.metadata and found is not None:
                object.__setattr__(self, item.name, read(item.metadata[KEY], found, item.name))

    @property
    def asked(self) -> dict[str, Any]:
        """The fields that are not as usual."""
        values = {item: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]
        return {item.name: value for item, value in values.items() if value != item.default}


def read(value: Value, found: object, name: str) -> Any:
    """What was found under a name; InputError says what it must be."""
    try:
        return value.read(found)
    except (TypeError, ValueError, OverflowError):
        name = name.replace("_", " ")
        raise InputError(f"{name}: {quoted(found)} is not {value.words}") from None


def refuse(reason: str, names: Iterable[str]) -> None:
    """Refuse options that have no place beside another."""
    flags = " and ".join(f"--{name.replace('_', '-')}" for name in names)
    if flags:
        raise InputError(f"{reason}; leave out {flags}")


def picked(kind: type[Taken], found: Mapping[str, Any], *names: str) -> Taken:
    """A bundle of what a mapping has under these names."""
    return kind(**{name: found[name] for name in names if name in found})

"""The lines of a text, by the keyword they begin with; knows no more of them than that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from weft.errors import InputError, NotationError
from weft.notation.limits import MOST_WORDS, check_lines, check_words
from weft.notation.places import shown

HEADER = "weft program 1"
_ONCE = ("name", "microbatches", "graph", "pipes", "period", "no-stash", "parts")
_MANY = ("stage", "edge", "place", "tie", "norm", "experts", "device")


class Line(NamedTuple):
    """Its number in the text and its words after the keyword."""

    number: int
    words: list[str]


Lines: TypeAlias = Mapping[str, list[Line]]


def read_lines(text: str) -> Lines:
    """The lines of every keyword, in order, without comments."""
    found: dict[str, list[Line]] = {keyword: [] for keyword in (*_ONCE, *_MANY)}
    meaningful = _meaningful(text)
    _check_header(next(meaningful, Line(1, [])))
    for number, (keyword, *words) in meaningful:
        if keyword not in found:
            known = ", ".join(found)
            raise NotationError(f"{shown(keyword)} where one of {known} belongs", line=number)
        if keyword in _ONCE and found[keyword]:
            first = found[keyword][0].number
            raise NotationError(f"`{keyword}` stands in line {first} already", line=number)
        found[keyword].append(Line(number, words))
    return found


def needed(lines: Lines, keyword: str, example: str) -> Line:
    """The first line of a keyword that no program lacks."""
    if not lines[keyword]:
        raise InputError(f"a program needs a line `{example}`; is the file cut off?")
    return lines[keyword][0]


def _meaningful(text: str) -> Iterator[Line]:
    """Every line that has words; a word that begins with # ends a line."""
    check_lines(text)
    total = 0
    for number, line in enumerate(text.split("\n"), start=1):
        words = line.split(maxsplit=MOST_WORDS)
        total += len(words)
        check_words(total)
        if "#" in line:
            end = next((i for i, word in enumerate(words) if word.startswith("#")), len(words))
            words = words[:end]
        if words:
            yield Line(number, words)


def _check_header(line: Line) -> None:
    first, second, version = HEADER.split()
    if line.words[:2] != [first, second]:
        raise NotationError(f"a program begins with the line `{HEADER}`", line=line.number)
    if line.words[2:] != [version]:
        given = shown(" ".join(line.words[2:]))
        raise NotationError(f"version {given}; this Weft reads version 1", line=line.number)

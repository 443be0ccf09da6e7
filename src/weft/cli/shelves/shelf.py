"""A shelf: things of one kind by name, with a line and a page on each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Thing = TypeVar("Thing")


@dataclass(frozen=True, slots=True)
class Shelf(Generic[Thing]):
    """What there is, and how to tell it.

    find       the thing of a name; InputError names the nearest
    line       the cells of its row, under `columns`
    title      what its page begins with
    page       facts, a name and a text each
    described  all of it, as JSON takes it
    """

    things: Mapping[str, Thing]
    find: Callable[[str], Thing]
    columns: Sequence[str]
    line: Callable[[str, Thing], Sequence[str]]
    title: Callable[[str, Thing], str]
    page: Callable[[str, Thing], Iterable[tuple[str, str]]]
    described: Callable[[str, Thing], dict[str, object]]
    footer: str

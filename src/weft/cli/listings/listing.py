"""A listing: entries of one kind by name, each with a row of a table and with details."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class Listing(Generic[Entry]):
    """What there is, and how to show it.

    find       the entry of a name; InputError names the nearest
    row        the cells of its row, under `columns`
    title      what its details begin with
    details    facts, a name and a text each
    described  all of it, as JSON takes it
    """

    entries: Mapping[str, Entry]
    find: Callable[[str], Entry]
    columns: Sequence[str]
    row: Callable[[str, Entry], Sequence[str]]
    title: Callable[[str, Entry], str]
    details: Callable[[str, Entry], Iterable[tuple[str, str]]]
    described: Callable[[str, Entry], dict[str, object]]
    footer: str

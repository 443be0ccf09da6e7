"""Places: every refusal leaves the notation as a NotationError that names where.

What reads a line or a JSON member raises InputError; the context it stands in adds the place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weft.errors import InputError, NotationError


@contextmanager
def in_source(source: str) -> Iterator[None]:
    """Name the file or text that is read."""
    try:
        yield
    except NotationError as error:
        raise error.within(source) from None
    except InputError as error:
        raise NotationError(str(error), source=source) from None


@contextmanager
def on_line(line: int) -> Iterator[None]:
    """Name the line that is read."""
    try:
        yield
    except NotationError:
        raise
    except InputError as error:
        raise NotationError(str(error), line=line) from None


@contextmanager
def at(path: str) -> Iterator[None]:
    """Name the JSON member that is read, as in lanes[3].device."""
    try:
        yield
    except NotationError:
        raise
    except InputError as error:
        raise NotationError(f"{path}: {error}" if path else str(error)) from None


def shown(word: str) -> str:
    """A word as a message quotes it: on one line, and not too long of it."""
    return repr(word if len(word) <= 40 else f"{word[:37]}...")

"""Tokens: numbers in a row, each below a vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError

Tokens: TypeAlias = NDArray[np.integer[Any]]

CHUNK = 1 << 22  # tokens that are looked at together
MOST_VOCABULARY = 1 << 24


def vocabulary_of(tokens: Tokens, name: object, given: int | None) -> int:
    """The size of the vocabulary: as given, or one more than the largest token."""
    found = _largest(tokens, name) + 1 if given is None else given
    if found > MOST_VOCABULARY:
        raise InputError(
            f"{name}: a vocabulary of {found:,} is more than the {MOST_VOCABULARY:,} that Weft"
            " takes; is the type of its tokens another?"
        )
    return found


def _largest(tokens: Tokens, name: object) -> int:
    """The largest token, seen in chunks; InputError where one is negative."""
    largest = 0
    for chunk in _chunks(tokens):
        if chunk.min() < 0:
            raise InputError(f"{name}: token {chunk.min()} is negative; tokens count from 0")
        largest = max(largest, int(chunk.max()))
    return largest


def _chunks(tokens: Tokens) -> Iterator[Tokens]:
    return (tokens[start : start + CHUNK] for start in range(0, len(tokens), CHUNK))

"""Sections: what an explanation says of one question."""

from __future__ import annotations

from typing import NamedTuple


class Section(NamedTuple):
    """Sentences, and a table below them where there are rows."""

    lines: tuple[str, ...]
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()

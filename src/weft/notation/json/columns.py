"""The actions of a program as JSON: a list for each column.

    {"stage": [0, 0, 1, 1], "kind": ["F", "B", "F", "B"], "microbatch": 0}

One value stands for a list of the same; a column left out is as `ir.actions` defaults it.
"""

from __future__ import annotations

import numpy as np

from weft.ir.actions import COLUMNS, Actions, Column
from weft.ir.kinds import Kind
from weft.notation.json.reading import Node

_DEFAULTS = {"span": 1, "version": -1, "pipe": 0, "edge": -1, "segment": -1, "joined": 0}
_NEEDED = ("stage", "kind", "microbatch")
_LEAST = {"stage": 0, "span": 1, "pipe": 0, "joined": 0}  # the others: -1, does not apply
_KINDS = {kind.name: int(kind) for kind in Kind}
_NAMES = list(_KINDS)


def columns_object(actions: Actions) -> dict[str, object]:
    """What `read_columns` reads."""
    written: dict[str, object] = {}
    for name in COLUMNS:
        column: Column = getattr(actions, name)
        if name in _DEFAULTS and (column == _DEFAULTS[name]).all():
            continue
        values = column.tolist()
        words = [_NAMES[value] for value in values] if name == "kind" else values
        written[name] = words[0] if len(set(values)) == 1 else words
    return written


def read_columns(node: Node, count: int) -> Actions:
    """As many actions as the lanes hold."""
    members = node.members(COLUMNS, _NEEDED)
    columns = {
        name: _kinds(item, count) if name == "kind" else _column(item, count, _LEAST.get(name, -1))
        for name, item in members.items()
    }
    for name, default in _DEFAULTS.items():
        columns.setdefault(name, np.full(count, default, np.int32))
    return Actions(**columns)


def _column(node: Node, count: int, least: int) -> Column:
    if isinstance(node.value, list):
        return np.array(node.counts(least=least, exactly=count), np.int32)
    return np.full(count, node.count(least=least), np.int32)


def _kinds(node: Node, count: int) -> Column:
    if isinstance(node.value, list):
        words = node.texts(exactly=count)
        if set(words) <= _KINDS.keys():
            return np.array([_KINDS[word] for word in words], np.int32)
        return np.array([_kind(item) for item in node.items()], np.int32)
    return np.full(count, _kind(node), np.int32)


def _kind(node: Node) -> int:
    if node.text() not in _KINDS:
        raise node.wrong(f"one of {', '.join(_KINDS)}")
    return _KINDS[node.text()]

"""Mappings: descriptions as plain keys and values, the form in which files hold them.

A key is the name of a field, without its `is_`. What equals its default may be left out, and an
infinite number must be, since JSON has none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from typing import Any, TypeVar

import numpy as np

from weft.cost.checks import quoted
from weft.errors import InputError

Preset = TypeVar("Preset")


def keyword_arguments(kind: type, mapping: object, name: str) -> dict[str, Any]:
    """What to call a dataclass with; InputError for a key that it lacks or needs."""
    if not isinstance(mapping, Mapping):
        raise InputError(f"{name} is {quoted(mapping)}; it must be keys and values")
    known = {field.name.removeprefix("is_"): field for field in fields(kind)}
    for key in mapping:
        if key not in known:
            raise InputError(f"{name}: unknown key {quoted(key)}{_hint(str(key), list(known))}")
    for key, field in known.items():
        is_needed = field.default is MISSING and field.default_factory is MISSING
        if is_needed and key not in mapping:
            raise InputError(f"{name}: the key {key!r} is missing")
    return {known[key].name: value for key, value in mapping.items()}


def as_mapping(thing: Any) -> dict[str, object]:
    """What `keyword_arguments` reads, without what equals its default."""
    written: dict[str, object] = {}
    for field in fields(thing):
        value = getattr(thing, field.name)
        if value != field.default and value != math.inf:
            written[field.name.removeprefix("is_")] = _plain(value)
    return written


def named(presets: Mapping[str, Preset], name: str, what: str) -> Preset:
    """The preset of a name; InputError with the nearest there is."""
    if name not in presets:
        raise InputError(f"no {what} is named {quoted(name)}{_hint(name, list(presets))}")
    return presets[name]


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return as_mapping(value) if hasattr(value, "__dataclass_fields__") else value


def _hint(key: str, known: list[str]) -> str:
    near = get_close_matches(key, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"

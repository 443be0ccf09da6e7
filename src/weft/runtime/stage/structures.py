"""Structures as bytes, for other ranks: types by their names, so that nothing is executed."""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from operator import attrgetter
from typing import Any

from weft.errors import InputError
from weft.runtime.stage.values import FIXED, TENSOR, TYPES, Structure


@lru_cache(maxsize=256)
def written(structure: Structure) -> bytes:
    return json.dumps(_described(structure)).encode()


@lru_cache(maxsize=256)
def read(content: bytes) -> Structure:
    return _found(json.loads(content))


def _described(structure: Structure) -> Any:
    if structure.kind is None:
        return int(structure == FIXED)
    kind = f"{structure.kind.__module__}:{structure.kind.__qualname__}"
    if structure.kind is not type(None) and _kind(kind) is not structure.kind:
        raise InputError(
            f"{structure.kind.__qualname__} travels between ranks: define it at the top of a module"
        )
    return [kind, structure.keys, [_described(child) for child in structure.children]]


def _found(described: Any) -> Structure:
    if isinstance(described, int):
        return FIXED if described else TENSOR
    kind, keys, children = described
    return Structure(_kind(kind), tuple(keys), tuple(map(_found, children)))


def _kind(name: str) -> type:
    """A type by its name, from a module that is loaded."""
    module, qualified = name.split(":")
    if name == "builtins:NoneType":
        return type(None)
    try:
        found = attrgetter(qualified)(sys.modules[module])
    except (AttributeError, KeyError):
        found = None
    if not isinstance(found, type):
        raise InputError(f"{qualified} of {module} is not known here; {TYPES}")
    return found

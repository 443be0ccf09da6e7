"""Packing: what optimizers, schedulers and modules keep, as JSON, with its tensors apart.

    {"step": tensor(3.), "betas": (0.9, 0.99)}
    {"dict": [["step", {"tensor": "optimizer.0.weight.step"}], ["betas", {"tuple": [0.9, 0.99]}]]}

Numbers, texts, None, tensors, and lists, tuples and dicts of them: nothing is ever unpickled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from weft.errors import InputError

JSON: TypeAlias = Any  # what json.dumps takes

PLAIN = (bool, int, float, str, type(None))


def pack(value: Any, key: str, tensors: dict[str, Tensor]) -> JSON:
    """A value as JSON; its tensors are added to the others, by keys that begin with this one."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, Tensor):
        tensors[key] = value
        return {"tensor": key}
    if isinstance(value, list | tuple):
        items = [pack(one, f"{key}.{index}", tensors) for index, one in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, dict) and all(isinstance(name, str | int) for name in value):
        pairs = [[name, pack(one, f"{key}.{name}", tensors)] for name, one in value.items()]
        return {"counter" if isinstance(value, Counter) else "dict": pairs}
    raise InputError(
        f"{key} is of type {type(value).__name__}, which a save cannot hold: keep numbers,"
        f" texts, tensors, and lists, tuples and dicts of them, or weights and buffers"
    )


def unpack(value: JSON, read: Callable[[str], Tensor]) -> Any:
    """The value that was packed; tensors are read by their keys."""
    if isinstance(value, list):
        return [unpack(one, read) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return read(content)
    if kind == "tuple":
        return tuple(unpack(one, read) for one in content)
    pairs = {name: unpack(one, read) for name, one in content}
    return Counter(pairs) if kind == "counter" else pairs


def keys_in(value: JSON) -> list[str]:
    """The keys of all tensors of a packed value."""
    found = list[str]()

    def note(key: str) -> Tensor:
        found.append(key)
        return torch.empty(0, device="cpu")

    unpack(value, note)
    return found

"""Forms: what a layer may hand to the next beside a plain tensor, and how that one reads it.

Whatever travels is read, so that a value or a gradient that gets lost is noticed; unless the form
says that nobody reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.runtime.habits.size import LENGTH, WIDTH


class Form(NamedTuple):
    """How a layer's output is wrapped, given its input too; and how it is read."""

    wrap: Callable[[Tensor, Tensor], Any]
    read: Callable[[Any], Tensor]


class Named(NamedTuple):
    value: Tensor
    extra: Tensor


@dataclass
class Record:
    value: Tensor
    extra: Tensor
    absent: Tensor | None = None
    note: str = "kept"


def _extra(value: Tensor) -> Tensor:
    """A number that the data give, as losses of routers are."""
    return value.square().mean()


def _mask(value: Tensor) -> Tensor:
    return (torch.arange(value.numel()) % 3 == 0).view(value.shape)


def _places(value: Tensor) -> Tensor:
    return torch.arange(value.shape[-1])


def _turned(value: Tensor) -> Tensor:
    precise = value.float() if value.dtype is torch.bfloat16 else value
    return torch.complex(precise, 0.5 * precise)


def _nested(value: Tensor, _: Tensor) -> Any:
    rest = [_mask(value), {"scale": 2, "extra": _extra(value)}]
    return {"value": (value, None), "rest": rest}


def _read_nested(given: Any) -> Tensor:
    mask, more = given["rest"]
    value: Tensor = torch.where(mask, given["value"][0], 0.5 * given["value"][0])
    return torch.add(value * more["scale"], more["extra"], alpha=0.1)


FORMS: dict[str, Form] = {
    "tensor": Form(lambda v, _: v, lambda g: g),
    # tuples
    "single": Form(lambda v, _: (v,), lambda g: g[0] if isinstance(g, tuple) else g),
    "extra": Form(lambda v, _: (v, _extra(v)), lambda g: g[0] + 0.1 * g[1]),
    "halves": Form(lambda v, _: v.chunk(2, -1), lambda g: torch.cat([g[0], g[1]], -1)),
    "twice": Form(lambda v, _: (v, v), lambda g: g[0] + 0.5 * g[1]),
    "with detached": Form(lambda v, _: (v, v.detach()), lambda g: g[0] + 0.5 * g[1]),
    "with input": Form(lambda v, x: (v, x), lambda g: g[0] + 0.5 * g[1].mean((0, 1))),
    "with mask": Form(lambda v, _: (v, _mask(v)), lambda g: torch.where(g[1], g[0], 0.5 * g[0])),
    "with places": Form(lambda v, _: (v, _places(v)), lambda g: g[0] + 0.1 * g[1]),
    "with float": Form(lambda v, _: (v, v.float()), lambda g: g[0] + 0.5 * g[1].to(g[0].dtype)),
    "with none": Form(lambda v, _: (v, None), lambda g: g[0]),
    "none first": Form(lambda v, _: (None, v), lambda g: g[1]),
    "with nothing": Form(lambda v, _: (v, v[:0]), lambda g: g[0] + g[1].sum()),
    "constants": Form(lambda v, _: (v, 2, "text", True, 0.25), lambda g: g[0] * g[1] * g[4]),
    # of which nobody reads a part
    "unread number": Form(lambda v, _: (v, _extra(v)), lambda g: g[0]),
    "unread value": Form(lambda v, _: (v, 2 * v), lambda g: g[0]),
    "unread first": Form(lambda v, _: (2 * v, v), lambda g: g[1]),
    # other containers
    "list": Form(lambda v, _: [v, _extra(v)], lambda g: g[0] + 0.1 * g[1]),
    "named": Form(lambda v, _: Named(v, _extra(v)), lambda g: g[0] + 0.1 * g[1]),
    "dict": Form(
        lambda v, _: {"value": v, "extra": _extra(v)}, lambda g: g["value"] + 0.1 * g["extra"]
    ),
    "record": Form(lambda v, _: Record(v, _extra(v)), lambda g: g.value + 0.1 * g.extra),
    "nested": Form(_nested, _read_nested),
    "dict of rows": Form(
        lambda v, _: {"value": v, "mask": _mask(v), "absent": None, "scale": 0.5},
        lambda g: torch.where(g["mask"], g["value"], g["scale"] * g["value"]),
    ),
    "nested rows": Form(
        lambda v, _: {"value": (v, None), "rest": [_mask(v), {"scale": 2}]},
        lambda g: torch.where(g["rest"][0], g["value"][0], g["rest"][1]["scale"] * g["value"][0]),
    ),
    # tensors of another shape, layout or type
    "scalar": Form(lambda v, _: v.mean(), lambda g: g.expand(1, LENGTH, WIDTH)),
    "transposed": Form(lambda v, _: v.transpose(1, 2), lambda g: g.transpose(1, 2)),
    "expanded": Form(lambda v, _: v[:, :1].expand_as(v), lambda g: g),
    "complex": Form(lambda v, _: _turned(v), lambda g: g.real + g.imag),
}

# What a batch may be: all of its tensors have its rows.
DATA = ("tensor", "with mask", "with none", "twice", "constants", "dict of rows", "nested rows")


def arity(form: str) -> int:
    """Over how many arguments a stage of a list gets it."""
    probe = torch.zeros(2, LENGTH, WIDTH)
    value = FORMS[form].wrap(probe, probe)
    return len(value) if isinstance(value, tuple) else 1

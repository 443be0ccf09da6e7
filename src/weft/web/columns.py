"""Columns: arrays as JSON takes them, in as few bytes as they need."""

from __future__ import annotations

from base64 import b64encode
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.ir.actions import Column, Index
from weft.ir.earliest import Seconds

Numbers: TypeAlias = Column | Index | Seconds | NDArray[np.bool_]
Packed: TypeAlias = dict[str, object]

# The types that a browser has arrays of, smallest first, in NumPy's words.
INTEGERS = ("u1", "i1", "u2", "i2", "i4")


def exact(values: Numbers) -> Packed:
    """Whole numbers, or seconds in full."""
    if values.dtype.kind == "f":
        return _packed(values, "f8")
    return _packed(values, _smallest(values))


def rounded(values: Seconds) -> Packed:
    """Seven digits, for what is only looked at."""
    return _packed(values, "f4")


def _packed(values: Numbers, kind: str) -> Packed:
    """One value where all are equal; else little-endian bytes in base 64."""
    if len(values) and (values == values[0]).all():
        return {"all": values[0].item(), "count": len(values), "type": kind}
    content = np.ascontiguousarray(values, f"<{kind}").tobytes()
    return {"type": kind, "base64": b64encode(content).decode("ascii")}


def _smallest(values: Numbers) -> str:
    if not len(values):
        return INTEGERS[0]
    least, most = int(values.min()), int(values.max())
    fits = (kind for kind in INTEGERS if _holds(kind, least, most))
    return next(fits)


def _holds(kind: str, least: int, most: int) -> bool:
    limits = np.iinfo(kind)
    return int(limits.min) <= least and most <= int(limits.max)

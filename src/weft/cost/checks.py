"""Checks: numbers and links that make sense, refused by the name of what they belong to."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np

from weft.cost.provenance import check_marks
from weft.errors import InputError
from weft.ir.kinds import Part

if TYPE_CHECKING:
    from weft.cost.cost import Cost, Link, Parts

MOST = 10**9  # of anything that is counted
_MOST_QUOTED = 40  # characters


def quoted(value: object) -> str:
    """A value as a message quotes it: on one line, and not too long of it."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _MOST_QUOTED else f"{text[: _MOST_QUOTED - 3]}..."


def check_number(value: object, name: str, *, upper: float = 1e300) -> None:
    """A number from 0 to `upper`, and no NaN."""
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= upper:  # type: ignore[operator]
        raise InputError(f"{name} is {quoted(value)}; it must be a number, not negative")


def check_positive(value: object, name: str, *, upper: float = 1e300) -> None:
    """A number above 0."""
    check_number(value, name, upper=upper)
    if value == 0:
        raise InputError(f"{name} is 0; it must be more")


def check_count(value: object, name: str, *, least: int = 0, most: int = MOST) -> None:
    """A whole number from `least` to `most`."""
    if type(value) is not int or not least <= value <= most:
        raise InputError(
            f"{name} is {quoted(value)}; it must be a whole number from {least} to {most:,}"
        )


def check_flag(value: object, name: str) -> None:
    """True or False."""
    if type(value) is not bool:
        raise InputError(f"{name} is {quoted(value)}; it must be true or false")


def check_text(value: object, name: str) -> None:
    """A text."""
    if not isinstance(value, str):
        raise InputError(f"{name} is {quoted(value)}; it must be a text")


def check_link(link: Link, name: str) -> None:
    """A latency, and a bandwidth that may be unlimited but not 0."""
    check_number(link.latency, f"latency of link {name}")
    check_number(link.bandwidth, f"bandwidth of link {name}", upper=math.inf)
    if link.bandwidth == 0:
        raise InputError(f"bandwidth of link {name} is 0; leave it out for an unlimited link")


def check_cost(cost: Cost) -> None:
    """Seconds and bytes are numbers, not negative, as many as there are stages."""
    for group in (cost.times, cost.memory):
        for item in fields(group):
            _check_field(getattr(group, item.name), item.name, cost.stages)
    check_number(cost.overhead, "overhead")
    _check_messages(cost.network.message)
    check_link(cost.network.default, "between devices")
    check_link(cost.network.host, "to the host")
    for (source, destination), link in cost.network.between.items():
        check_link(link, f"{source}-{destination}")
    for kinds, ratio in cost.pairs.items():
        check_number(ratio, f"pair {kinds}")
    for kind, shares in cost.parts.items():
        _check_parts(kind, shares, cost.stages)
    for microbatch, ratio in enumerate(cost.sizes):
        check_number(ratio, f"size of microbatch {microbatch}")
    check_marks(cost.provenance, cost.stages)


def _check_parts(kind: str, shares: Parts, stages: int) -> None:
    each = shares if isinstance(shares[0], tuple) else (shares,)
    is_known = kind in ("F", "I") and all(len(own) == len(Part) for own in each)
    if not is_known or len(each) not in (1, stages):
        raise InputError(
            f"parts of {kind}: F and I have shares of {len(Part)} parts, one set of them for all"
            f" stages or one for each"
        )
    for share in np.array(each).flat:
        check_number(share, f"a part of {kind}")


def _check_messages(message: float | tuple[float, ...]) -> None:
    if not isinstance(message, tuple):
        check_number(message, "message")
        return
    for edge, size in enumerate(message):
        check_number(size, f"message of edge {edge}")


def _check_field(value: tuple[float, ...] | float | None, name: str, stages: int) -> None:
    if value is None:
        return
    if not isinstance(value, tuple):
        check_number(value, name, upper=math.inf)
        return
    if len(value) != stages:
        raise InputError(f"{name}: {len(value)} values for {stages} stages")
    for stage, number in enumerate(value):
        check_number(number, f"{name} of stage {stage}")

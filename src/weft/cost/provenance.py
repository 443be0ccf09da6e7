"""Provenance: how each predicted second is known.

    GIVEN         somebody wrote it down
    MEASURED      timed, or read from a table at a point that was timed
    INTERPOLATED  read from a table between two such points
    DERIVED       worked out from a description alone: a bound more than a prediction

Knows what kinds of action take their seconds from; knows no second itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.ir.kinds import Kind


class Provenance(Enum):
    """How a second is known, the surest first."""

    GIVEN = "given"
    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    DERIVED = "derived"


Marks: TypeAlias = Mapping[str, tuple[Provenance, ...]]

WEIGHTY = 0.1  # of an action's seconds: what rests on less does not decide its mark
_ORDER = tuple(Provenance)

# What each kind of action takes its seconds from, in the words of Times and Network.
SOURCES: dict[Kind, tuple[str, ...]] = {
    Kind.F: ("forward",),
    Kind.B: ("input_grad", "weight_grad"),
    Kind.I: ("input_grad",),
    Kind.W: ("weight_grad",),
    Kind.R: ("recompute",),
    Kind.SEND_ACTIVATION: ("network",),
    Kind.RECV_ACTIVATION: ("network",),
    Kind.SEND_GRADIENT: ("network",),
    Kind.RECV_GRADIENT: ("network",),
    Kind.OFFLOAD: ("host",),
    Kind.ONLOAD: ("host",),
    Kind.REDUCE: ("reduce",),
    Kind.UPDATE: ("update",),
    Kind.FREE: (),
    Kind.GATHER: ("reduce",),
}
NAMES = tuple(dict.fromkeys(name for names in SOURCES.values() for name in names))


class Estimate(NamedTuple):
    """Seconds, and how they are known."""

    seconds: float
    provenance: Provenance


def total(parts: Sequence[Estimate]) -> Estimate:
    """The sum, known as badly as the worst that a tenth of it rests on."""
    seconds = sum(part.seconds for part in parts)
    resting = dict.fromkeys(Provenance, 0.0)
    for part in parts:
        resting[part.provenance] += part.seconds
    weighty = [mark for mark in Provenance if seconds and resting[mark] >= WEIGHTY * seconds]
    return Estimate(seconds, weakest(weighty or [Provenance.DERIVED]))


def weakest(marks: Sequence[Provenance]) -> Provenance:
    """The least sure of some marks; of none, GIVEN."""
    return max(marks, key=_ORDER.index, default=Provenance.GIVEN)


def marks_by_kind(marks: Marks, stages: int) -> NDArray[np.object_]:
    """The mark of [kind, stage]; what is not marked was given."""
    given = (Provenance.GIVEN,) * stages
    table = np.empty((len(Kind), stages), np.object_)
    for kind, names in SOURCES.items():
        rows = [marks.get(name, given) for name in names] or [given]
        table[kind] = [weakest(column) for column in zip(*rows, strict=True)]
    return table


def check_marks(marks: Marks, stages: int) -> None:
    """Refuse marks of what a cost does not have, or of other stages."""
    for name, of_stages in marks.items():
        if name not in NAMES:
            raise InputError(f"provenance of {name!r}; a cost has {', '.join(NAMES)}")
        if len(of_stages) != stages:
            raise InputError(f"provenance of {name}: {len(of_stages)} marks for {stages} stages")

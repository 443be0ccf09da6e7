"""Absences: what the graph asks for and the program lacks, and who notices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from weft.ir.graph import Backward
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.ir.values import Value
from weft.verify.coverage import Coverage


class Reader(NamedTuple):
    """An action that waits for a value."""

    row: int
    value: Value


class Absence(NamedTuple):
    """A missing action; it `is_begun` where another left something for it to end."""

    stage: int
    kind: Kind
    microbatch: int
    reader: Reader | None
    is_begun: bool


_PRODUCERS = {
    Value.ACTIVATION: Kind.F,
    Value.SAVED: Kind.F,
    Value.GRADIENT: Kind.B,
    Value.DEFERRED: Kind.B,
}


def absences(coverage: Coverage) -> Iterator[Absence]:
    """All missing computations, stage by stage."""
    stages = coverage.program.graph.stages
    returns = np.array([[stage.backward is not Backward.NONE] for stage in stages])
    learns = np.array([[stage.backward is Backward.FULL] for stage in stages])
    forward, backward = coverage.count(Kind.F), coverage.count(Kind.B, Kind.I)
    weights, is_whole = coverage.count(Kind.W), coverage.count(Kind.B) > 0
    is_split = learns & (backward > 0) & ~is_whole
    readers = _readers(coverage.program)
    for kind, is_absent, is_begun in (
        (Kind.F, forward < coverage.pieces(Kind.F), forward < 0),
        (Kind.B, returns & (backward < coverage.pieces(Kind.B, Kind.I)), forward > 0),
        (Kind.W, is_split & (weights < coverage.pieces(Kind.W)), is_split),
    ):
        for stage, microbatch in np.argwhere(is_absent).tolist():
            named = Kind.I if kind is Kind.B and weights[stage, microbatch] else kind
            reader = readers.get((kind, stage, microbatch))
            yield Absence(stage, named, microbatch, reader, bool(is_begun[stage, microbatch]))


def _readers(program: Program) -> dict[tuple[Kind, int, int], Reader]:
    """For each missing computation, the first action that waits for it."""
    found: dict[tuple[Kind, int, int], Reader] = {}
    columns = zip(*(c.tolist() for c in program.dependencies.missing), strict=True)
    for row, value, stage, microbatch in columns:
        kind = _PRODUCERS.get(Value(value))
        if kind is not None:
            reader = Reader(row, Value(value))
            key = (kind, stage, microbatch)
            found[key] = min(found.get(key, reader), reader)
    return found

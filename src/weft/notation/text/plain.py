"""The plain form: what each device computes, for the eye alone.

    F0 F1 F0' B0' U0' ...     a prime for each stage that the device holds before this one

An update is numbered by the version that it reads. Nothing reads it back: it says neither
stages nor devices nor the versions that computations use.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.actions import COLUMNS, Actions
from weft.ir.lanes import Lane
from weft.ir.program import Program
from weft.notation.text.lanes import slots
from weft.notation.tokens import SPELLINGS, Row, covered, uses, written


def plain(program: Program) -> str:
    """One line for each device: its compute lane."""
    contents = program.contents()
    none = Actions.collect([])
    return "\n".join(
        _line(program, contents.get(Lane(device), none), held)
        for device, held in enumerate(program.placement.held)
    )


def _line(program: Program, actions: Actions, held: Sequence[tuple[int, int]]) -> str:
    """What the device does not hold keeps its whole token."""
    primes = {item: "'" * position for position, item in enumerate(held)}
    columns = [getattr(actions, name).tolist() for name in COLUMNS[:-1]]
    words = written(actions, program.graph.edges)
    for index, row in enumerate(zip(*columns, strict=True)):
        stage, pipe = row[0], row[5]
        if (pipe, stage) in primes:
            words[index] = _word(row, primes[pipe, stage])
    return " ".join(slots(words, actions.joined.tolist()))


def _word(row: Row, primes: str) -> str:
    _, kind, microbatch, span, version, _, _, segment = row
    prefix, letter = SPELLINGS[kind]
    name = f"{prefix}{letter}" if letter else prefix.removesuffix(":")
    number = covered(microbatch, span) if microbatch >= 0 else str(version)
    return f"{name}{number}{primes}{uses(-1, segment)}"

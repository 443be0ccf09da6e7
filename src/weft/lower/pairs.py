"""Pairs: where nothing overlaps, the two actions of a pair run one after the other.

dualpipe, device 1    F0 F1 F2|B0 F3|B1 ...
unpaired              F0 F1 F2 B0 F3 B1 ...
"""

from __future__ import annotations

from weft.cost import Cost
from weft.ir.program import Program


def unpaired(program: Program) -> Program:
    """The same program with a slot for every action: pairs run one after the other."""
    if not program.actions.joined.any():
        return program
    lanes = {lane: actions.replace(joined=0) for lane, actions in program.contents().items()}
    return program.with_lanes(lanes)


def overlapping(program: Program, cost: Cost) -> Program:
    """The program as this cost times it: where it was measured, nothing overlaps."""
    is_measured = cost.measurement is not None and not cost.pairs
    return unpaired(program) if is_measured else program

"""Pairs: where nothing overlaps, the two actions of a pair run one after the other.

dualpipe, device 1    F0 F1 F2|B0 F3|B1 ...
unpaired              F0 F1 F2 B0 F3 B1 ...
"""

from __future__ import annotations

from weft.ir.program import Program


def unpaired(program: Program) -> Program:
    """The same order with a slot for every action."""
    if not program.actions.joined.any():
        return program
    lanes = {lane: actions.replace(joined=0) for lane, actions in program.contents().items()}
    return program.with_lanes(lanes)

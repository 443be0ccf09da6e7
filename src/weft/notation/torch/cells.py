"""The words of a cell: 2F0, 0SEND_F1, (0F1;3B0)OVERLAP_F_B; and those that say nothing here."""

from __future__ import annotations

import re

from weft.errors import InputError
from weft.ir.actions import Action, Pair
from weft.ir.kinds import Kind
from weft.notation.places import shown

WORDS = {
    Kind.F: "F",
    Kind.B: "B",
    Kind.I: "I",
    Kind.W: "W",
    Kind.SEND_ACTIVATION: "SEND_F",
    Kind.RECV_ACTIVATION: "RECV_F",
    Kind.SEND_GRADIENT: "SEND_B",
    Kind.RECV_GRADIENT: "RECV_B",
}

_KINDS = {word: kind for kind, word in WORDS.items()}
_ACTION = re.compile(rf"([0-9]{{1,9}})({'|'.join(_KINDS)})([0-9]{{1,9}})")
_PAIR = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B")
# Gradients are scaled and weights gathered and dropped where torch's own lowering says.
_LEFT_OUT = re.compile(r"[0-9]{1,9}(REDUCE_GRAD|UNSHARD|RESHARD)")


def read_cell(cell: str) -> Action | Pair | None:
    """What a cell lists; None where a program has no place for it."""
    pair = _PAIR.fullmatch(cell)
    if pair is not None:
        return Pair(_computation(pair[1].strip()), _computation(pair[2].strip()))
    return _action(cell) if cell and not _LEFT_OUT.fullmatch(cell) else None


def written_cell(action: Action) -> str:
    """The word of one action."""
    return f"{action.stage}{WORDS[action.kind]}{action.microbatch}"


def paired(first: str, second: str) -> str:
    """The word of two computations in one slot."""
    return f"({first};{second})OVERLAP_F_B"


def reduction(stage: int) -> str:
    """The word that has torch divide a stage's gradients by the number of microbatches."""
    return f"{stage}REDUCE_GRAD"


def _computation(cell: str) -> Action:
    action = _action(cell)
    if not action.kind.is_compute:
        raise InputError(f"{shown(cell)} stands in a pair; a pair is two computations")
    return action


def _action(cell: str) -> Action:
    match = _ACTION.fullmatch(cell)
    if match is None:
        raise InputError(
            f"{shown(cell)} is no action of torch's; one reads 2F0, 1I3, 1W3 or 0SEND_F2"
        )
    stage, word, microbatch = match.groups()
    return Action(int(stage), _KINDS[word], int(microbatch))

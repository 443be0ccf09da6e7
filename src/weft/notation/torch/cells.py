"""The words of a cell: 2F0, 0SEND_F1, (0F1;3B0)OVERLAP_F_B; and those that say nothing here."""

from __future__ import annotations

import re

from weft.errors import InputError
from weft.ir.actions import Action, Actions, Pair
from weft.ir.kinds import Kind
from weft.notation.places import shown

_WORDS: dict[int, str] = {
    Kind.F: "F",
    Kind.B: "B",
    Kind.I: "I",
    Kind.W: "W",
    Kind.SEND_ACTIVATION: "SEND_F",
    Kind.RECV_ACTIVATION: "RECV_F",
    Kind.SEND_GRADIENT: "SEND_B",
    Kind.RECV_GRADIENT: "RECV_B",
}

_KINDS = {word: Kind(kind) for kind, word in _WORDS.items()}
_ACTION = re.compile(rf"([0-9]{{1,9}})({'|'.join(_KINDS)})([0-9]{{1,9}})")
_PAIR = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B")
_REDUCTION = re.compile(r"([0-9]{1,9})REDUCE_GRAD")
_LEFT_OUT = re.compile(r"[0-9]{1,9}(UNSHARD|RESHARD)")  # weights gathered and dropped


def read_cell(cell: str) -> Action | Pair | None:
    """What a cell lists; None where a program has no place for it."""
    pair = _PAIR.fullmatch(cell)
    if pair is not None:
        return Pair(_computation(pair[1].strip()), _computation(pair[2].strip()))
    reduction = _REDUCTION.fullmatch(cell)
    if reduction is not None:
        return Action(int(reduction[1]), Kind.REDUCE, version=0)
    return _action(cell) if cell and not _LEFT_OUT.fullmatch(cell) else None


def written_cells(actions: Actions) -> list[str]:
    """A word for each action."""
    columns = (actions.stage.tolist(), actions.kind.tolist(), actions.microbatch.tolist())
    return [
        f"{stage}{_WORDS[kind]}{microbatch}"
        for stage, kind, microbatch in zip(*columns, strict=True)
    ]


def paired(first: str, second: str) -> str:
    """The word of two computations in one slot."""
    return f"({first};{second})OVERLAP_F_B"


def written_reduction(stage: int) -> str:
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
            f"{shown(cell)} is not an action of torch's; one reads 2F0, 1I3, 1W3 or 0SEND_F2"
        )
    stage, word, microbatch = match.groups()
    return Action(int(stage), _KINDS[word], int(microbatch))

"""From a program to a table: computations alone, or lowered where the program has its wires.

A lowered row is one list, so the lanes of a device become one. Every message is listed at the
moment its value is there, by both its ranks, and all ranks agree on that order:

    rank 0   0F0 0SEND_F0 0F1 0SEND_F1     0RECV_B0 0B0
    rank 1       1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from weft.errors import NotationError
from weft.ir.actions import Actions, Index
from weft.ir.earliest import Seconds, earliest
from weft.ir.graph import Backward
from weft.ir.kinds import EDGE_END, Kind
from weft.ir.program import Program
from weft.notation.torch.cells import paired, written_cells, written_reduction


def to_torch_csv(program: Program) -> str:
    """The table of a program; NotationError where torch has no word for it."""
    unknown = [words for is_present, words in _beyond_torch(program) if is_present]
    if unknown:
        words = f"torch's tables know no {', no '.join(unknown)}; text and JSON have all of it"
        raise NotationError(words, source=program.name)
    rows = _lowered(program) if _is_lowered(program) else _computed(program)
    return "".join(f"{','.join(row)}\n" for row in rows)


def _beyond_torch(program: Program) -> Iterator[tuple[bool, str]]:
    actions, graph = program.actions, program.graph
    is_moved = np.isin(actions.kind, (Kind.OFFLOAD, Kind.ONLOAD))
    yield len(program.placement.pipes) > 1, "second pipe"
    yield not graph.is_chain, "graph that branches"
    yield any(s.backward is not Backward.FULL for s in graph.stages), "frozen stage"
    yield program.period is not None, "program that repeats"
    yield bool((actions.version > 0).any()), "weight versions"
    yield program.period is None and program.steps > 1, "second step"
    yield bool((actions.kind == Kind.R).any()), "recomputation"
    yield bool(is_moved.any()), "offloading"
    yield bool((actions.span > 1).any()), "action over several microbatches"
    yield bool((actions.segment >= 0).any()), "parts of a layer"
    yield _has_mixed_pair(actions), "pair of anything but computations"
    # Its runtime takes the first loss for that of microbatch 0, and so on.
    yield _has_late_loss(program), "forwards of the last stage out of order"


def _has_mixed_pair(actions: Actions) -> bool:
    second = np.flatnonzero(actions.joined)
    return bool((np.maximum(actions.kind[second], actions.kind[second - 1]) > Kind.R).any())


def _has_late_loss(program: Program) -> bool:
    """Whether the last stage runs a microbatch before an earlier one."""
    if len(program.placement.pipes) > 1:
        return False
    actions = program.actions
    is_loss = (actions.kind == Kind.F) & (actions.stage == program.stages - 1)
    return bool((np.diff(actions.microbatch[is_loss]) < 0).any())


def _is_lowered(program: Program) -> bool:
    """Whether it has all that a computation does not do itself."""
    return bool((program.actions.kind > Kind.R).any()) and not program.crossing.any()


class _Cells(NamedTuple):
    """Words for actions of a program, and when each is listed."""

    rows: Index
    words: list[str]
    times: Seconds


def _computed(program: Program) -> Iterator[list[str]]:
    return _in_order(program, [_computations(program, np.arange(len(program), dtype=np.float64))])


def _lowered(program: Program) -> Iterator[list[str]]:
    """Messages and reductions at the end of a slot, computations after them."""
    kind = program.actions.kind
    units = np.where(kind <= Kind.R, np.where(kind == Kind.B, 2.0, 1.0), 0.0)
    length = np.bincount(program.slot_of, units).astype(np.float64)
    start = earliest(program.precedence(np.zeros(len(program.dependencies))), length)
    if len(program.dependencies.missing.consumer) or not np.isfinite(start).all():
        raise NotationError("never ends: `verify` names the action that waits", source=program.name)
    slot_start, slot_end = start[program.slot_of], (start + length)[program.slot_of]
    cells = [
        _messages(program, slot_end),
        _reductions(program, slot_end),
        _computations(program, slot_start),
    ]
    return _in_order(program, cells)


def _in_order(program: Program, cells: list[_Cells]) -> Iterator[list[str]]:
    """The words of each device by time; at one time, in the order given."""
    device = program.device_of[np.concatenate([part.rows for part in cells])]
    order = np.lexsort((np.concatenate([part.times for part in cells]), device))
    words = np.array([word for part in cells for word in part.words], object)[order]
    bounds = np.searchsorted(device[order], np.arange(program.devices + 1))
    return (words[first:last].tolist() for first, last in pairwise(bounds))


def _computations(program: Program, times: Seconds) -> _Cells:
    rows = np.flatnonzero(program.actions.kind <= Kind.R)
    actions = program.actions.take(rows)
    words: list[str] = []
    for word, is_second in zip(written_cells(actions), actions.joined.tolist(), strict=True):
        if is_second:
            words[-1] = paired(words[-1], word)
        else:
            words.append(word)
    first = rows[actions.joined == 0]
    return _Cells(first, words, times[first])


def _messages(program: Program, end: Seconds) -> _Cells:
    """Both ends of a message when what it carries has been computed, in one order for all."""
    rows = np.flatnonzero(np.isin(program.actions.kind, list(EDGE_END)))
    rows = rows[np.argsort(program.origin[rows], kind="stable")]
    return _Cells(rows, written_cells(program.actions.take(rows)), end[program.origin[rows]])


def _reductions(program: Program, end: Seconds) -> _Cells:
    """After the last weight gradient of each stage; torch scales gradients there."""
    kind, stage = program.actions.kind, program.actions.stage
    last = {int(stage[row]): row for row in np.flatnonzero((kind == Kind.B) | (kind == Kind.W))}
    rows = np.array(list(last.values()), np.int64)
    return _Cells(rows, list(map(written_reduction, last)), end[rows])

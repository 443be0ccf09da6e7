"""Issuing: a table lists when a rank issues a send or a receive; a program does not.

A program sends a value as soon as it is there, in the order of its channel. A rank of a table may
do so later, after further computations, and computes the same; unless another rank waits for it
meanwhile, and it for that one:

    rank 0   0F0 0RECV_B0 0B0 0SEND_F0        waits for the gradient of what it has not sent
    rank 1   1RECV_F0 1F0 1B0 1SEND_B0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.errors import InputError
from weft.ir.actions import Actions, Index
from weft.ir.earliest import Precedence, Seconds, earliest
from weft.ir.kinds import Kind
from weft.notation.places import on_line
from weft.notation.torch.cells import written_cells

SENDS = (Kind.SEND_ACTIVATION, Kind.SEND_GRADIENT)
RECEIVES = (Kind.RECV_ACTIVATION, Kind.RECV_GRADIENT)
UPSTREAM = (Kind.SEND_GRADIENT, Kind.RECV_GRADIENT)


class _Waits(NamedTuple):
    """For each receive that is sent: who waits for it, its send, and who computes what is sent."""

    reader: Index
    send: Index
    source: Index


def check_issued(rows: Sequence[Actions]) -> None:
    """Refuse a send or receive on the wrong side of its computation, or one that comes too late."""
    for number, row in enumerate(rows, start=1):
        with on_line(number):
            _check_sides(row)
    every = Actions.concatenate(rows)
    slot = np.cumsum(every.joined == 0) - 1
    bounds = np.append(0, np.cumsum([int((row.joined == 0).sum()) for row in rows]))
    served = np.concatenate([_served(row) for row in rows])
    first = np.repeat(np.cumsum([0, *map(len, rows)])[:-1], [*map(len, rows)])
    waits = _waits(every, np.where(served < 0, -1, served + first))
    at_once = _starts(bounds, slot[waits.reader], slot[waits.source])
    as_listed = _starts(bounds, slot[waits.reader], slot[waits.send])
    is_held = np.isfinite(as_listed[slot[waits.source]]) & np.isinf(as_listed[slot[waits.send]])
    if is_held.any() and np.isfinite(at_once).all():
        _refuse_late(rows, every, int(waits.send[is_held].min()))


def _refuse_late(rows: Sequence[Actions], every: Actions, send: int) -> None:
    rank = int(np.searchsorted(np.cumsum([*map(len, rows)]), send, "right"))
    (word,) = written_cells(every.take([send]))
    with on_line(rank + 1):
        raise InputError(
            f"{word} comes too late: rank {rank} waits in front of it for what follows from it,"
            " a deadlock. Move it right after the computation whose value it sends"
        )


def _check_sides(row: Actions) -> None:
    """A value is sent after it is computed, and received before it is needed."""
    served, place = _served(row), np.arange(len(row))
    is_send = np.isin(row.kind, SENDS)
    is_wrong = (served >= 0) & np.where(is_send, served > place, served < place)
    is_wrong &= is_send | np.isin(row.kind, RECEIVES)
    if is_wrong.any():
        wrong = int(is_wrong.argmax())
        (word,) = written_cells(row.take([wrong]))
        if is_send[wrong]:
            raise InputError(
                f"{word} stands in front of the computation whose value it sends."
                " Move it after that"
            )
        raise InputError(
            f"{word} comes after the computation that waits for it. Move it in front of that"
        )


def _served(row: Actions) -> Index:
    """For each action, the first F, B or I of its stage and microbatch in the row; -1 if none."""
    is_backward = np.isin(row.kind, (Kind.B, Kind.I, *UPSTREAM))
    cell = (row.stage.astype(np.int64) << 32 | row.microbatch) << 1 | is_backward
    computed = np.flatnonzero((row.kind <= Kind.R) & (row.kind != Kind.W))[::-1]
    place_of = dict(zip(cell[computed].tolist(), computed.tolist(), strict=True))
    return np.array([place_of.get(of, -1) for of in cell.tolist()], np.int64)


def _waits(every: Actions, served: Index) -> _Waits:
    """By the names of the messages; whether they arrive in that order is verification's to say."""
    is_gradient = np.isin(every.kind, UPSTREAM)
    message = (every.edge.astype(np.int64) << 32 | every.microbatch) << 1 | is_gradient
    sends = np.flatnonzero(np.isin(every.kind, SENDS) & (served >= 0))
    receives = np.flatnonzero(np.isin(every.kind, RECEIVES) & (served >= 0))
    send_of = dict(zip(message[sends].tolist(), sends.tolist(), strict=True))
    sent = np.array([send_of.get(name, -1) for name in message[receives].tolist()], np.int64)
    found = receives[sent >= 0]
    send = sent[sent >= 0]
    return _Waits(served[found], send, served[send])


def _starts(bounds: Index, reader: Index, producer: Index) -> Seconds:
    """When each cell is issued, if a computation waits for the end of what it is sent by."""
    precedence = Precedence(bounds, reader, producer, np.zeros(len(reader)))
    return earliest(precedence, np.ones(precedence.slots))

"""Tables and groups: who covers what, found without a loop over actions."""

from __future__ import annotations

import numpy as np

from weft.ir.actions import Actions, Index
from weft.ir.kinds import Kind


class Tables:
    """The action that covers [stage, microbatch] (or [edge, microbatch]), by kind; -1 if none.

    A stage cut into segments has a first and a last action; `into` finds the one that reads
    from other stages, `out_of` the one they read.
    """

    def __init__(self, actions: Actions, *, stages: int, edges: int, microbatches: int) -> None:
        self.actions = actions
        self.microbatches = microbatches
        self._stages = stages
        self._edges = edges
        present = set(np.unique(actions.kind).tolist())
        self.has_segments = bool((actions.segment >= 0).any())
        self.has_wires = any(Kind(kind).is_wire for kind in present)
        self.has_updates = bool(
            {Kind.UPDATE, Kind.REDUCE, Kind.FREE, Kind.GATHER} & present
        ) or bool((actions.version > 0).any())
        self._present = present
        self._made: dict[tuple[tuple[Kind, ...], bool], Index] = {}

    def into(self, *kinds: Kind) -> Index:
        return self._table(kinds, is_last=kinds[0] in (Kind.B, Kind.I, Kind.W))

    def out_of(self, *kinds: Kind) -> Index:
        return self._table(kinds, is_last=kinds[0] not in (Kind.B, Kind.I, Kind.W))

    def has(self, kind: Kind) -> bool:
        return kind in self._present

    def _table(self, kinds: tuple[Kind, ...], *, is_last: bool) -> Index:
        key = (kinds, is_last and self.has_segments)
        if key not in self._made:
            self._made[key] = self._make(kinds, is_last=is_last)
        return self._made[key]

    def _make(self, kinds: tuple[Kind, ...], *, is_last: bool) -> Index:
        """Later writes win, so segments are written in the order that leaves the wanted one."""
        actions = self.actions
        is_wire = kinds[0].is_wire
        table = np.full((self._edges if is_wire else self._stages, self.microbatches), -1, np.int64)
        wanted = [kind for kind in kinds if kind in self._present]
        if not wanted:
            return table
        rows = np.flatnonzero(np.any([actions.kind == kind for kind in wanted], axis=0))
        if self.has_segments:
            ranks = actions.segment[rows]
            rows = rows[np.argsort(ranks if is_last else -ranks, kind="stable")]
        row_of = actions.edge if is_wire else actions.stage
        spans = actions.span[rows]
        if (spans == 1).all():
            table[row_of[rows], actions.microbatch[rows]] = rows
            return table
        offset = np.arange(int(spans.sum())) - np.repeat(np.cumsum(spans) - spans, spans)
        rows = np.repeat(rows, spans)
        table[row_of[rows], actions.microbatch[rows] + offset] = rows
        return table


class Groups:
    """Rows grouped by a key, to be joined with readers of that key."""

    def __init__(self, rows: Index, keys: Index) -> None:
        order = np.argsort(keys, kind="stable")
        self._rows, self._keys = rows[order], keys[order]

    def join(self, readers: Index, keys: Index) -> tuple[Index, Index]:
        """Every (reader, row) with equal keys."""
        first = np.searchsorted(self._keys, keys)
        counts = np.searchsorted(self._keys, keys, "right") - first
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(readers, counts), self._rows[np.repeat(first, counts) + within]

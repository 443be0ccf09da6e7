"""Coverage: which actions cover which microbatch of which stage or edge, and how often."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from weft.ir.actions import Column, Index
from weft.ir.kinds import Kind
from weft.ir.program import Program


class Cells(NamedTuple):
    """Actions, once for each microbatch that they cover."""

    row: Index
    microbatch: Index


@dataclass(frozen=True, slots=True, eq=False)
class Coverage:
    """The actions of a program by kind and by what they cover; needs a well-formed program."""

    program: Program
    _cells: dict[tuple[Kind, ...], Cells] = field(default_factory=dict, init=False)  # as asked for

    @property
    def microbatches(self) -> int:
        """Of all steps."""
        return self.program.microbatches * self.program.steps

    def rows(self, *kinds: Kind) -> Index:
        """All actions of these kinds."""
        kind = self.program.actions.kind
        return np.flatnonzero(np.logical_or.reduce([kind == wanted for wanted in kinds]))

    def cells(self, *kinds: Kind) -> Cells:
        """All actions of these kinds, once for each microbatch that they cover."""
        found = self._cells.get(kinds)
        if found is None:
            found = self._cells[kinds] = self._made_cells(kinds)
        return found

    def _made_cells(self, kinds: tuple[Kind, ...]) -> Cells:
        actions, rows = self.program.actions, self.rows(*kinds)
        spans = actions.span[rows]
        row = np.repeat(rows, spans)
        within = np.arange(len(row)) - np.repeat(np.cumsum(spans) - spans, spans)
        return Cells(row, actions.microbatch[row] + within)

    def count(self, *kinds: Kind) -> Index:
        """How many actions of these kinds cover [stage, microbatch], or [edge, microbatch]."""
        graph = self.program.graph
        row, microbatch = self.cells(*kinds)
        lines = len(graph.edges) if kinds[0].is_wire else len(graph)
        cell = self._line(kinds[0])[row].astype(np.int64) * self.microbatches + microbatch
        flat = np.bincount(cell, minlength=lines * self.microbatches)
        return flat.reshape(lines, self.microbatches)

    def repeats(self, *kinds: Kind) -> Iterator[tuple[int, int]]:
        """Actions of these kinds that do what one before them does, and that one."""
        row, cell = self.cells(*kinds).row, self.keys(*kinds)
        order = np.argsort(cell, kind="stable")
        same = np.flatnonzero(np.diff(cell[order]) == 0)
        again, first = np.unique(row[order][same + 1], return_index=True)
        return zip(again.tolist(), row[order][same[first]].tolist(), strict=True)

    def keys(self, *kinds: Kind) -> Index:
        """For each of the cells of these kinds, a number for what it covers: with its segment."""
        row, microbatch = self.cells(*kinds)
        pieces = int(self.program.actions.segment.max(initial=-1)) + 2
        line = self._line(kinds[0])[row].astype(np.int64)
        part = line * pieces + self.program.actions.segment[row] + 1
        return np.asarray(part * self.microbatches + microbatch)

    def pieces(self, *kinds: Kind) -> Index:
        """For each stage, in a row of its own, into how many segments these kinds are cut."""
        actions, rows = self.program.actions, self.rows(*kinds)
        width = int(actions.segment.max(initial=-1)) + 2
        parts = np.unique(actions.stage[rows] * width + actions.segment[rows] + 1)
        return np.maximum(np.bincount(parts // width, minlength=self.program.stages), 1)[:, None]

    def _line(self, kind: Kind) -> Column:
        return self.program.actions.edge if kind.is_wire else self.program.actions.stage

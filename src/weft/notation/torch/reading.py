"""From a table to a program.

Empty cells are idle time, which a program does not list. A table says neither placement nor
microbatches: the first follows from who runs which stage, the second from the forwards of stage
0. What else it holds is read as it stands, for verification to judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.ir.actions import Actions
from weft.ir.graph import Graph
from weft.ir.kinds import EDGE_END, Direction, Kind, Stream
from weft.ir.lanes import Channel, Lane
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.notation.limits import (
    check_actions,
    check_cells,
    check_forwards,
    check_lines,
    check_stages,
    check_total,
    check_words,
)
from weft.notation.places import in_source, on_line
from weft.notation.torch.cells import read_cell, written_cells, written_reduction
from weft.notation.torch.issuing import UPSTREAM, check_issued


def from_torch_csv(text: str, source: str = "") -> Program:
    """The program of a table, lowered or not; NotationError where it cannot be read."""
    with in_source(source):
        rows = _rows(text)
        placement = _placement(rows)
        microbatches = _microbatches(rows)
        graph = Graph.chain(placement.stages)
        check_cells(graph, microbatches)
        edge_at = _edge_at(graph)
        for number, row in enumerate(rows, start=1):
            with on_line(number):
                rows[number - 1] = row = _with_edges(row, edge_at)
                check_actions(row, graph, placement, microbatches)
        check_issued(rows)
        check_forwards(Actions.concatenate(rows), len(graph), microbatches)
        name = PurePath(source).stem or "torch"
        lanes = _lanes(rows, graph, placement)
        return Program.build(name, placement, lanes, microbatches=microbatches, graph=graph)


def _rows(text: str) -> list[Actions]:
    """The actions of each rank."""
    check_lines(text)
    check_words(text.count(","))
    rows = []
    total = 0
    for number, line in enumerate(text.rstrip().split("\n"), start=1):
        with on_line(number):
            found = (read_cell(cell.strip()) for cell in line.split(","))
            row = Actions.collect(slot for slot in found if slot is not None)
            total += len(row)
            check_total(total)
            row = _without_reductions(row)
            if not _is_computed(row).any():
                raise InputError(f"rank {number - 1} runs nothing")
        rows.append(row)
    return rows


def _without_reductions(row: Actions) -> Actions:
    """The same without what divides the gradients of a stage, which must be all there by then."""
    is_reduction = row.kind == Kind.REDUCE
    ends = np.flatnonzero((row.kind == Kind.B) | (row.kind == Kind.W))
    last = dict(zip(row.stage[ends].tolist(), ends.tolist(), strict=True))
    seen: set[int] = set()
    for place in np.flatnonzero(is_reduction).tolist():
        stage = int(row.stage[place])
        if stage in seen:
            raise InputError(f"{written_reduction(stage)} stands twice. Remove one of the two")
        if last.get(stage, place) > place:
            raise InputError(
                f"{written_reduction(stage)} stands in front of a gradient of its stage."
                " Move it after the last of them"
            )
        seen.add(stage)
    return row.take(~is_reduction)


def _placement(rows: list[Actions]) -> Placement:
    """Each stage on the one rank that runs it."""
    rank_of: dict[int, int] = {}
    for rank, row in enumerate(rows):
        with on_line(rank + 1):
            for stage in np.unique(row.stage[_is_computed(row)]).tolist():
                if stage in rank_of:
                    raise InputError(f"stage {stage} runs on ranks {rank_of[stage]} and {rank}")
                rank_of[stage] = rank
    check_stages(len(rank_of))
    for stage in range(len(rank_of)):
        if stage not in rank_of:
            raise InputError(f"no rank runs stage {stage}, but one runs stage {max(rank_of)}")
    return Placement((tuple(rank_of[stage] for stage in range(len(rank_of))),))


def _microbatches(rows: list[Actions]) -> int:
    """As many as stage 0 runs forwards of."""
    found: set[int] = set()
    for row in rows:
        found.update(row.microbatch[(row.stage == 0) & (row.kind == Kind.F)].tolist())
    if not found:
        raise InputError("no rank runs a forward of stage 0")
    return len(found)


def _edge_at(graph: Graph) -> dict[tuple[int, int], int]:
    """The edge of a kind of send or receive at a stage."""
    return {
        (kind, ends[end]): edge
        for edge, ends in enumerate(graph.edges)
        for kind, end in EDGE_END.items()
    }


def _with_edges(row: Actions, edge_at: Mapping[tuple[int, int], int]) -> Actions:
    """The same actions; a send or receive names the edge at whose end its stage stands."""
    places = zip(row.kind.tolist(), row.stage.tolist(), strict=True)
    edges = np.array([edge_at.get(place, -1) for place in places], np.int32)
    is_lost = ~_is_computed(row) & (edges < 0)
    if is_lost.any():
        raise InputError(f"{_first_of(row, is_lost)}: there is no stage at the other end")
    return row.replace(edge=edges)


def _first_of(row: Actions, mask: NDArray[np.bool_]) -> str:
    (word,) = written_cells(row.take([int(mask.argmax())]))
    return word


def _lanes(rows: list[Actions], graph: Graph, placement: Placement) -> dict[Lane, Actions]:
    """A compute lane for each rank, and one for each end of each channel."""
    lanes = {Lane(rank): row.take(_is_computed(row)) for rank, row in enumerate(rows)}
    edges = np.array(graph.edges, np.int64).reshape(-1, 2)
    for rank, row in enumerate(rows):
        wires = row.take(~_is_computed(row))
        ends = placement.table[0][edges[wires.edge]]
        is_upstream = np.isin(wires.kind, UPSTREAM)
        ends[is_upstream] = ends[is_upstream][:, ::-1]
        for source, destination in np.unique(ends, axis=0).tolist():
            channel = Channel(source, destination, Direction.BOTH)
            is_here = (ends == (source, destination)).all(axis=1)
            lanes[Lane(rank, Stream.WIRE, channel)] = wires.take(is_here)
    return lanes


def _is_computed(row: Actions) -> NDArray[np.bool_]:
    return np.asarray(row.kind <= Kind.R)

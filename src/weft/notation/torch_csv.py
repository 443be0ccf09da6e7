"""torch's table of a schedule: one row for each rank, one cell for each action, compute only.

    0F0,0F1,,0B0,(2F0;2B1)OVERLAP_F_B

Empty cells are idle time, which a program does not list. A table says neither placement nor
microbatches: the first follows from who runs which stage, the second from the forwards of stage
0. What else it holds is read as it stands, for verification to judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

import numpy as np

from weft.errors import InputError, NotationError
from weft.ir.actions import Action, Actions, Pair
from weft.ir.graph import Graph
from weft.ir.kinds import Kind
from weft.ir.placement import Placement
from weft.ir.program import Lane, Program
from weft.notation.limits import check_actions, check_cells, check_stages, check_total
from weft.notation.places import in_source, on_line, shown
from weft.notation.tokens import written

_ACTION = re.compile(r"([0-9]{1,9})([FBIW])([0-9]{1,9})")
_PAIR = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B")
_REDUCE = re.compile(r"[0-9]{1,9}REDUCE_GRAD")  # torch ends its own compute-only rows with it
_OTHERS = re.compile(r"[0-9]+(SEND_[FB]|RECV_[FB]|UNSHARD|RESHARD)[0-9]*")


# reading


def from_torch_csv(text: str, source: str = "") -> Program:
    """The program of a compute-only table; NotationError where it cannot be read."""
    with in_source(source):
        rows = _rows(text)
        placement = _placement(rows)
        microbatches = _microbatches(rows)
        graph = Graph.chain(placement.stages)
        check_cells(graph, microbatches)
        check_total(sum(map(len, rows)))
        for number, row in enumerate(rows, start=1):
            with on_line(number):
                check_actions(row, graph, placement, microbatches)
        name = PurePath(source).stem or "torch"
        return Program.build(name, placement, rows, microbatches=microbatches, graph=graph)


def _rows(text: str) -> list[Actions]:
    """The actions of each rank."""
    rows = []
    for number, line in enumerate(text.rstrip().split("\n"), start=1):
        with on_line(number):
            row = Actions.collect(_slots(line))
            if not len(row):
                raise InputError(f"rank {number - 1} runs nothing")
        rows.append(row)
    return rows


def _slots(line: str) -> Iterator[Action | Pair]:
    for cell in map(str.strip, line.split(",")):
        pair = _PAIR.fullmatch(cell)
        if pair is not None:
            yield Pair(_action(pair[1].strip()), _action(pair[2].strip()))
        elif cell and not _REDUCE.fullmatch(cell):
            yield _action(cell)


def _action(cell: str) -> Action:
    match = _ACTION.fullmatch(cell)
    if match is None:
        if _OTHERS.fullmatch(cell):
            raise InputError(
                f"{shown(cell)}: Weft reads torch's compute-only tables, without sends, receives"
                ' and shards; write one with format="compute_only"'
            )
        raise InputError(f"{shown(cell)} is no action of torch's; one reads 2F0, 1I3 or 1W3")
    stage, kind, microbatch = match.groups()
    return Action(int(stage), Kind[kind], int(microbatch))


def _placement(rows: list[Actions]) -> Placement:
    """Each stage on the one rank that runs it."""
    rank_of: dict[int, int] = {}
    for rank, row in enumerate(rows):
        with on_line(rank + 1):
            for stage in np.unique(row.stage).tolist():
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


# writing


def to_torch_csv(program: Program) -> str:
    """The compute-only table of a program; NotationError where torch has no word for it."""
    for is_present, words in _beyond_torch(program):
        if is_present:
            raise NotationError(f"torch's tables know no {words}", source=program.name)
    contents = program.contents()
    rows = (contents.get(Lane(device), Actions.collect([])) for device in range(program.devices))
    return "".join(f"{','.join(_cells(program, row))}\n" for row in rows)


def _beyond_torch(program: Program) -> Iterator[tuple[bool, str]]:
    compute = program.actions.take(program.actions.kind <= Kind.R)
    yield len(program.placement.pipes) > 1, "second pipe"
    yield not program.graph.is_chain, "graph that branches"
    yield program.period is not None, "program that repeats"
    yield bool((compute.kind == Kind.R).any()), "recomputation"
    yield bool((compute.span > 1).any()), "action over several microbatches"
    yield bool((compute.version > 0).any()), "weight versions"
    yield _has_mixed_pair(program.actions), "pair of anything but computations"
    yield bool((compute.segment >= 0).any()), "parts of a layer"


def _has_mixed_pair(actions: Actions) -> bool:
    second = np.flatnonzero(actions.joined)
    return bool((np.maximum(actions.kind[second], actions.kind[second - 1]) > Kind.R).any())


def _cells(program: Program, row: Actions) -> list[str]:
    """What the rank computes; updates are torch's own affair."""
    compute = row.take(row.kind <= Kind.R).replace(version=-1)
    cells: list[str] = []
    for word, is_second in zip(
        written(compute, program.graph.edges), compute.joined.tolist(), strict=True
    ):
        if is_second:
            cells[-1] = f"({cells[-1]};{word})OVERLAP_F_B"
        else:
            cells.append(word)
    return cells

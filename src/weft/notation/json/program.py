"""Programs as JSON: their facts, their lanes by length, all actions in columns.

    {"format": "weft.program", "version": 1, "name": "1f1b", "microbatches": 2,
     "graph": {"stages": 2}, "placement": [[0, 1]],
     "lanes": [{"device": 0, "actions": 4}, {"device": 1, "actions": 4}],
     "columns": {"stage": [0, 0, 0, 0, 1, 1, 1, 1],
                 "kind": ["F", "F", "B", "B", "F", "B", "F", "B"],
                 "microbatch": [0, 1, 0, 1, 0, 0, 1, 1]}}

And where they apply: "pipes", the pipe of each microbatch; "period", {"microbatches": 4,
"versions": 1, "repeats": 3}; "stashing": false; "parts", how many make an ordinary microbatch;
"ties", [[0, 3]], the stages of each tied weight; "norms", the stages that share a norm;
"experts", [[0, 1]], the pipes that exchange tokens.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from weft.errors import InputError
from weft.ir.actions import Actions
from weft.ir.graph import Graph
from weft.ir.lanes import Lane, Period
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.ir.weights import Sharing
from weft.notation.json.columns import columns_object, read_columns
from weft.notation.json.graph import graph_object, read_graph
from weft.notation.json.lanes import LaneEntry, lane_objects, read_lanes
from weft.notation.json.reading import VERSION, Node
from weft.notation.limits import (
    check_actions,
    check_cells,
    check_exchanges,
    check_forwards,
    check_pipes,
    check_repeats,
    check_sharing,
    check_ties,
    check_total,
)

FORMAT = "weft.program"

_PERIOD = ("microbatches", "versions", "repeats")
_NEEDED = ("microbatches", "graph", "placement", "lanes", "columns")
_KEYS = ("name", *_NEEDED, "pipes", "period", "stashing", "parts", "ties", "norms", "experts")


def program_object(program: Program) -> dict[str, object]:
    """What `read_program` reads."""
    written: dict[str, object] = {
        "format": FORMAT,
        "version": VERSION,
        "name": program.name,
        "microbatches": program.microbatches,
        "graph": graph_object(program.graph),
        "placement": program.placement.table.tolist(),
    }
    if any(program.pipe_of):
        written["pipes"] = [int(pipe) for pipe in program.pipe_of]
    if program.period is not None:
        period = program.period
        written["period"] = {key: getattr(period, key) for key in _PERIOD}
    if not program.is_stashing:
        written["stashing"] = False
    if program.parts > 1:
        written["parts"] = program.parts
    for name, groups in program.sharing._asdict().items():
        if groups:
            written[name] = [[int(stage) for stage in group] for group in groups]
    if program.expert_groups:
        written["experts"] = [[int(pipe) for pipe in group] for group in program.expert_groups]
    written["lanes"] = list(lane_objects(program))
    written["columns"] = columns_object(program.actions)
    return written


def read_program(node: Node) -> Program:
    """The program of a document."""
    members = node.document(FORMAT, _KEYS, _NEEDED)
    graph = read_graph(members["graph"])
    placement = _placement(members["placement"], graph)
    microbatches = members["microbatches"].count(least=1)
    with members["microbatches"].place():
        check_cells(graph, microbatches)
    sharing = _sharing(members, graph)
    entries = read_lanes(members["lanes"], placement, is_periodic="period" in members)
    contents = _contents(members, entries)
    for entry in entries:
        with entry.node.place():
            check_actions(contents[entry.lane], graph, placement, microbatches)
            check_ties(contents[entry.lane], sharing.ties)
            _check_cuts(contents[entry.lane], entry)
    with members["columns"].place():
        actions = Actions.concatenate(contents.values())
        check_repeats(actions)
        check_sharing(actions, sharing, len(graph))
        check_forwards(actions, len(graph), microbatches)
        groups = _expert_groups(members.get("experts"))
        check_exchanges(actions, groups)
    return Program.build(
        members["name"].text() if "name" in members else "",
        placement,
        contents,
        microbatches=microbatches,
        graph=graph,
        pipe_of=_pipe_of(members.get("pipes"), placement, microbatches),
        period=_period(members["period"], entries, graph) if "period" in members else None,
        is_stashing="stashing" not in members or members["stashing"].flag(),
        parts=members["parts"].count(least=1) if "parts" in members else 1,
        expert_groups=groups,
        **sharing._asdict(),
    )


def _expert_groups(node: Node | None) -> list[list[int]]:
    return [] if node is None else [[*item.counts()] for item in node.items()]


def _sharing(members: dict[str, Node], graph: Graph) -> Sharing:
    sharing = Sharing()
    for name in (name for name in Sharing._fields if name in members):
        groups = tuple(tuple(item.counts()) for item in members[name].items())
        with members[name].place():
            Sharing(**{name: groups}).check("the program", len(graph))
        sharing = sharing._replace(**{name: groups})
    return sharing


def _placement(node: Node, graph: Graph) -> Placement:
    pipes = tuple(tuple(pipe.counts(exactly=len(graph))) for pipe in node.items())
    with node.place():
        check_pipes(len(pipes))
        return Placement(pipes)


def _contents(members: dict[str, Node], entries: list[LaneEntry]) -> dict[Lane, Actions]:
    """The columns, cut into lanes."""
    bounds = np.cumsum([0, *(entry.actions for entry in entries)]).tolist()
    with members["lanes"].place():
        check_total(bounds[-1])
    actions = read_columns(members["columns"], bounds[-1])
    with members["columns"].place():
        check_total(int(actions.span.sum(dtype=np.int64)))
    return {
        entry.lane: actions[start:stop]
        for entry, (start, stop) in zip(entries, pairwise(bounds), strict=True)
    }


def _check_cuts(actions: Actions, entry: LaneEntry) -> None:
    for cut in (entry.prologue, entry.prologue + entry.body):
        if cut < len(actions) and actions.joined[cut]:
            raise InputError("prologue and body end between slots, not inside a pair")


def _pipe_of(node: Node | None, placement: Placement, microbatches: int) -> list[int]:
    if node is None:
        return [0] * microbatches
    pipes = node.counts(exactly=microbatches)
    with node.place():
        if max(pipes) >= len(placement.pipes):
            raise InputError(f"pipe {max(pipes)}, but the placement has {len(placement.pipes)}")
    return pipes


def _period(node: Node, entries: list[LaneEntry], graph: Graph) -> Period:
    members = node.members(_PERIOD, _PERIOD)
    microbatches = members["microbatches"].count()
    with members["microbatches"].place():
        check_cells(graph, microbatches)
    return Period(
        prologue=tuple(entry.prologue for entry in entries),
        body=tuple(entry.body for entry in entries),
        microbatches=microbatches,
        versions=members["versions"].count(),
        repeats=members["repeats"].count(),
    )

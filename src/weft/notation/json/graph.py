"""Graphs as JSON, within a program or in a file of their own.

    {"name": "diamond", "stages": 4, "edges": [[0, 1], [0, 2], [1, 3], [2, 3]]}

`stages` is a number, or a list of {"name", "cost", "backward", "whole_batch"}, each of which may
be left out. Without `edges` the stages are a chain. `fixed` lists the edges, if there are any, that
no gradient comes back along. A file may add "devices", the device of each
stage; without it each stage has its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.ir.graph import Backward, Graph, Stage, check_edge
from weft.ir.placement import Placement
from weft.notation.json.reading import Node, parse
from weft.notation.limits import check_stages
from weft.notation.places import in_source

_KEYS = ("name", "stages", "edges", "fixed")
_USUAL = Stage()


def graph_from_json(text: str, source: str = "") -> tuple[Graph, Placement]:
    """The graph of a JSON text, and where its stages live."""
    with in_source(source):
        root = parse(text)
        members = root.members((*_KEYS, "devices"), ("stages",))
        devices = members.pop("devices", None)
        graph = _graph(members, root)
        if devices is None:
            return graph, Placement.straight(len(graph))
        with devices.place():
            return graph, Placement((tuple(devices.counts(exactly=len(graph))),))


def graph_object(graph: Graph) -> dict[str, object]:
    """What `read_graph` reads."""
    stages = [_stage_object(stage) for stage in graph.stages]
    written: dict[str, object] = {"stages": stages if any(stages) else len(stages)}
    if graph.name:
        written = {"name": graph.name, **written}
    if not graph.is_chain:
        written["edges"] = [[int(stage) for stage in edge] for edge in graph.edges]
    if graph.fixed:
        written["fixed"] = [[int(stage) for stage in edge] for edge in sorted(graph.fixed)]
    return written


def read_graph(node: Node) -> Graph:
    """The graph within a program."""
    return _graph(node.members(_KEYS, ("stages",)), node)


def _graph(members: dict[str, Node], node: Node) -> Graph:
    name = members["name"].text() if "name" in members else ""
    stages = _stages(members["stages"])
    if "edges" not in members:
        with node.place():
            return Graph(stages, Graph.chain(len(stages)).edges, name=name)
    edges = tuple(_edges(members["edges"], stages))
    fixed = frozenset(_edges(members["fixed"], stages) if "fixed" in members else ())
    with members["edges"].place():
        return Graph(stages, edges, name, fixed)


def _edges(node: Node, stages: tuple[Stage, ...]) -> Iterator[tuple[int, int]]:
    for item in node.items():
        source, destination = item.counts(exactly=2)
        with item.place():
            check_edge((source, destination), len(stages))
        yield source, destination


def _stages(node: Node) -> tuple[Stage, ...]:
    if isinstance(node.value, list):
        stages = tuple(_stage(item) for item in node.items())
    else:
        count = node.count(least=1)
        with node.place():
            check_stages(count)
        stages = (_USUAL,) * count
    with node.place():
        check_stages(len(stages))
        Graph(stages, ())  # refuses a graph without stages
    return stages


def _stage(node: Node) -> Stage:
    members = node.members(("name", "cost", "backward", "whole_batch"))
    return Stage(
        name=members["name"].text() if "name" in members else _USUAL.name,
        cost=_cost(members["cost"]) if "cost" in members else _USUAL.cost,
        backward=members["backward"].choice(Backward) if "backward" in members else _USUAL.backward,
        is_whole_batch="whole_batch" in members and members["whole_batch"].flag(),
    )


def _cost(node: Node) -> float:
    """Not negative, and whole where it is written so."""
    cost = node.number()
    if cost < 0:
        raise node.wrong("a cost, which is not negative,")
    return node.value if isinstance(node.value, int) else cost


def _stage_object(stage: Stage) -> dict[str, object]:
    written: dict[str, object] = {}
    if stage.name:
        written["name"] = stage.name
    if repr(stage.cost) != repr(_USUAL.cost):
        written["cost"] = stage.cost
    if stage.backward is not _USUAL.backward:
        written["backward"] = stage.backward.value
    if stage.is_whole_batch:
        written["whole_batch"] = True
    return written

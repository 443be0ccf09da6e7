"""The lines of a graph, both ways.

    graph chain 4
    stage 3 name=join cost=2 backward=input whole-batch

Where the model branches, `graph stages 4 name=diamond` and a line `edge 0 1` for each edge; `edge 0
1 fixed` where no gradient comes back.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.errors import InputError, NotationError
from weft.ir.graph import Backward, Graph, Stage, check_edge
from weft.notation.limits import check_stages
from weft.notation.places import on_line, shown
from weft.notation.text.lines import Line, Lines, needed
from weft.notation.text.words import choice, cost, counts, escaped, unescaped

_USUAL = Stage()


def graph_lines(graph: Graph) -> Iterator[str]:
    """The graph, its edges where it is no chain, its stages where they are not as usual."""
    usual = f"chain:{len(graph)}" if graph.is_chain else ""
    name = f" name={escaped(graph.name)}" if graph.name != usual else ""
    yield f"graph {'chain' if graph.is_chain else 'stages'} {len(graph)}{name}"
    if not graph.is_chain:
        for edge in graph.edges:
            yield f"edge {edge[0]} {edge[1]}{' fixed' if edge in graph.fixed else ''}"
    for index, stage in enumerate(graph.stages):
        if attributes := list(_attributes(stage)):
            yield f"stage {index} {' '.join(attributes)}"


def _attributes(stage: Stage) -> Iterator[str]:
    if stage.name:
        yield f"name={escaped(stage.name)}"
    if repr(stage.cost) != repr(_USUAL.cost):
        yield f"cost={stage.cost}"
    if stage.backward is not _USUAL.backward:
        yield f"backward={stage.backward.value}"
    if stage.is_whole_batch:
        yield "whole-batch"


def read_graph(lines: Lines) -> Graph:
    """The graph that the lines describe."""
    number, words = needed(lines, "graph", "graph chain 4")
    with on_line(number):
        is_chain, count, name = _first_line(words)
        stages = _stages(lines["stage"], count)
        if not is_chain:
            edges = dict(_edges(lines["edge"], stages))
            fixed = frozenset(edge for edge, is_fixed in edges.items() if is_fixed)
            return Graph(stages, tuple(edges), name, fixed)
        if lines["edge"]:
            raise NotationError("a chain has its edges already", line=lines["edge"][0].number)
        return Graph(stages, Graph.chain(count).edges, name=name)


def _first_line(words: list[str]) -> tuple[bool, int, str]:
    """Whether it is a chain, its stages and its name."""
    example = "graph chain 4` or `graph stages 4 name=diamond"
    form, *numbers = [word for word in words if not word.startswith("name=")] or [""]
    if form not in ("chain", "stages") or len(words) - len(numbers) > 2:
        raise InputError(f"a graph reads `{example}`")
    (count,) = counts(numbers, example, exactly=1)
    check_stages(count)
    usual = f"name=chain:{count}" if form == "chain" else "name="
    name = next((word for word in words if word.startswith("name=")), usual)
    return form == "chain", count, unescaped(name.removeprefix("name="))


def _stages(lines: list[Line], count: int) -> tuple[Stage, ...]:
    stages = [_USUAL] * count
    seen: dict[int, int] = {}
    for number, words in lines:
        with on_line(number):
            (stage,) = counts(words[:1], "stage 3 cost=2", exactly=1)
            if stage >= count:
                raise InputError(f"stage {stage}: stages are 0 to {count - 1}")
            if stage in seen:
                raise InputError(f"stage {stage} stands in line {seen[stage]} already")
            stages[stage] = _stage(words[1:])
        seen[stage] = number
    return tuple(stages)


def _stage(words: list[str]) -> Stage:
    given: dict[str, str] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key in given or key not in ("name", "cost", "backward", "whole-batch"):
            example = "stage 3 name=join cost=2 backward=input whole-batch"
            raise InputError(f"{shown(word)}; a stage reads `{example}`")
        given[key] = value
    if given.get("whole-batch"):
        raise InputError("`whole-batch` takes no value")
    return Stage(
        name=unescaped(given.get("name", "")),
        cost=cost(given["cost"]) if "cost" in given else _USUAL.cost,
        backward=choice(Backward, given.get("backward", _USUAL.backward.value)),
        is_whole_batch="whole-batch" in given,
    )


def _edges(lines: list[Line], stages: tuple[Stage, ...]) -> Iterator[tuple[tuple[int, int], bool]]:
    """Every edge, and whether it is fixed."""
    seen: dict[tuple[int, int], int] = {}
    for number, words in lines:
        with on_line(number):
            is_fixed = words[2:] == ["fixed"]
            source, destination = counts(words[: 2 if is_fixed else None], "edge 0 1", exactly=2)
            edge = (source, destination)
            check_edge(edge, len(stages))
            if edge in seen:
                raise InputError(f"edge {source} {destination} stands in line {seen[edge]} already")
        seen[edge] = number
        yield edge, is_fixed

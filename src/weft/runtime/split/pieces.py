"""Pieces: the stages of a traced model, and what passes between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import fx, nn

from weft.ir.graph import Graph, Stage
from weft.runtime.split.holding import hold, leave_nothing
from weft.runtime.split.partition import Partition
from weft.runtime.split.piece import Packed, TracedPiece
from weft.runtime.split.stages import Stages
from weft.runtime.split.trace import Trace
from weft.runtime.split.traits import Traits


def pieces_of(trace: Trace, partition: Partition, traits: Mapping[fx.Node, Traits]) -> Stages:
    """The stages of a model, by the stage of each of its calls."""
    carried = _Carried(trace, partition)
    stages: list[nn.Module] = []
    for stage in range(partition.count):
        piece, names = _piece(trace, partition, carried, stage)
        hold(piece, trace, names, others=stages)
        stages.append(piece)
    leave_nothing(stages, trace.model)
    edges = tuple(sorted(carried.edges))
    graph = Graph((Stage(),) * partition.count, edges, fixed=carried.fixed(traits))
    return Stages(stages, graph=graph, carries=carried.edges)


class _Carried:
    """What each stage reads of the others.

    reads  by stage, values of other stages and inputs, in order
    gives  by stage, what others read of it
    edges  by edge, the names of what it carries
    """

    def __init__(self, trace: Trace, partition: Partition) -> None:
        self._trace, self._stage_of = trace, partition.stage_of
        count = partition.count
        self._last = count - 1
        self.reads = [self._read(stage) for stage in range(count)]
        self.gives: list[list[fx.Node]] = [[] for _ in range(count)]
        self.edges: dict[tuple[int, int], tuple[str, ...]] = {}
        for stage in range(count):
            for node in self.reads[stage]:
                if node.op != "placeholder":
                    self._carry(self._stage_of[node], stage, node)
        self.sources = {*range(count)} - {end for _, end in self.edges}
        for stage in range(count):
            for node in self.reads[stage]:
                if node.op == "placeholder" and stage not in self.sources:
                    giver = self._giver(node, stage)
                    self._carry(giver, stage, node)
                    if node not in self.reads[giver]:
                        self.reads[giver].append(node)

    def fixed(self, traits: Mapping[fx.Node, Traits]) -> frozenset[tuple[int, int]]:
        """The edges along which no gradient comes back, if another one has one for their source."""
        learning = {name_of(node) for node, one in traits.items() if one.learns}
        returning = {edge for edge, names in self.edges.items() if learning & {*names}}
        sources = {source for source, _ in returning}
        return frozenset(edge for edge in {*self.edges} - returning if edge[0] in sources)

    def _carry(self, source: int, stage: int, node: fx.Node) -> None:
        known = self.edges.get((source, stage), ())
        self.edges[source, stage] = (*known, name_of(node))
        if node not in self.gives[source]:
            self.gives[source].append(node)

    def _read(self, stage: int) -> list[fx.Node]:
        """In both modes, whatever is computed elsewhere."""
        found: dict[fx.Node, None] = {}
        for node in self._trace.nodes():
            mine = self._trace.same.get(node, node)
            own = self._stage_of.get(mine, self._last if node.op == "output" else None)
            if own == stage:
                found |= dict.fromkeys(self._outside(node, stage))
        order = {node: index for index, node in enumerate(self._trace.graph.nodes)}
        return sorted(found, key=lambda node: order[node])

    def _outside(self, node: fx.Node, stage: int) -> list[fx.Node]:
        found = []
        for read in node.all_input_nodes:
            mine = self._trace.same.get(read, read)
            if mine.op == "placeholder" or self._stage_of.get(mine, stage) != stage:
                found.append(mine)
            elif mine not in self._stage_of:
                found += self._outside(read, stage)
        return found

    def _giver(self, node: fx.Node, stage: int) -> int:
        """The source that has an input for a stage: one that reads it, else the first before."""
        before, found = {stage}, list[int]()
        for start, end in sorted(self.edges, reverse=True):
            if end in before:
                before.add(start)
        found = sorted(before & self.sources)
        return next((source for source in found if node in self.reads[source]), found[0])


def name_of(node: fx.Node) -> str:
    """What a value is called between stages."""
    return str(node.target) if node.op == "placeholder" else node.name


def _piece(
    trace: Trace, partition: Partition, carried: _Carried, stage: int
) -> tuple[TracedPiece, set[str]]:
    """A stage, and the names of what its calls read of the model."""
    builder = _Builder(trace, partition, carried, stage)
    calls, names = {}, set[str]()
    for graph, is_training in _graphs(trace):
        made = builder.built(graph)
        parts = {str(node.target) for node in made.nodes if node.op in ("get_attr", "call_module")}
        names |= parts
        whole: Any = {name: trace.part(name) for name in parts}
        call = type(fx.GraphModule(whole, made)).forward
        is_packed = stage == partition.count - 1 and trace.packed is not None
        calls[is_training] = Packed(call, trace.packed) if is_packed and trace.packed else call
    is_source = stage in carried.sources
    reads = [name_of(node) for node in carried.reads[stage]]
    first = next((node.name for node, own in partition.stage_of.items() if own == stage), "")
    piece = TracedPiece(
        trace.inputs.names if is_source else reads,
        f"from {first}",
        calls=calls,
        reads=reads,
        fixed=trace.inputs.fixed if is_source else {},
        defaults=trace.inputs.defaults if is_source else {},
        rows={name: rows for name, rows in trace.rows.items() if name in reads},
    )
    return piece, names


def _graphs(trace: Trace) -> Iterable[tuple[fx.Graph, bool]]:
    yield trace.graph, trace.is_training
    if trace.other is not None:
        yield trace.other, not trace.is_training


class _Builder:
    """Makes the graph of one stage of the graph of the whole."""

    def __init__(self, trace: Trace, partition: Partition, carried: _Carried, stage: int) -> None:
        self._trace, self._stage_of, self._carried = trace, partition.stage_of, carried
        self._stage, self._is_last = stage, stage == partition.count - 1

    def built(self, whole: fx.Graph) -> fx.Graph:
        """The stage's calls of a mode."""
        made = fx.Graph()
        known: dict[fx.Node, fx.Node] = {}  # by node of the main graph, or get_attr of any
        for node in self._carried.reads[self._stage]:
            known[node] = made.placeholder(f"{name_of(node)}_given")

        def value(node: fx.Node) -> fx.Node:
            mine = self._trace.same.get(node, node)
            if mine not in known:
                known[mine] = made.node_copy(node, value)
            return known[mine]

        for node in whole.nodes:
            if self._stage_of.get(self._trace.same.get(node, node)) == self._stage:
                value(node)
            if node.op == "output" and self._is_last:
                made.output(fx.node.map_arg(node.args[0], value))
        if not self._is_last:
            gives = self._carried.gives[self._stage]
            made.output({name_of(node): known[node] for node in gives})
        return made

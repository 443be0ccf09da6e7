"""Random programs, well-formed and mostly wrong: notation reads what verification refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from weft.cost import (
    Cost,
    Device,
    Link,
    Measurement,
    Memory,
    Network,
    Point,
    Provenance,
    Times,
    Transformer,
)
from weft.cost.measurement import Average
from weft.cost.provenance import NAMES
from weft.ir.actions import Action, Pair
from weft.ir.graph import Backward, Graph, Stage
from weft.ir.kinds import EDGE_END, Direction, Kind, Stream
from weft.ir.lanes import Channel, Lane, Period
from weft.ir.placement import Placement
from weft.ir.program import Program

T = TypeVar("T")

few = st.integers(0, 3)
names = st.text(max_size=8) | st.sampled_from(["1f1b", "a b", "#", 'q"\\\n', "\u2028"])
amounts = st.floats(0, 1e12) | st.integers(0, 9)
Slot = Action | Pair
Groups = tuple[tuple[int, ...], ...]


@st.composite
def graphs(draw: DrawFn) -> Graph:
    count = draw(st.integers(1, 4))
    one = st.builds(Stage, names, amounts, st.sampled_from(Backward), st.booleans())
    stages = draw(st.lists(st.just(Stage()) | one, min_size=count, max_size=count))
    every = [(u, v) for v in range(count) for u in range(v)]
    some = st.lists(st.sampled_from(every), unique=True) if every else st.just([])
    edges = draw(st.just(list(Graph.chain(count).edges)) | some)
    fixed = frozenset(draw(st.lists(st.sampled_from(edges))) if edges else ())
    for stage in reversed(range(count)):
        after = [stages[v] for u, v in edges if u == stage and (u, v) not in fixed]
        is_read = any(u == stage for u, _ in edges)
        if is_read and not any(other.is_learning for other in after):
            stages[stage] = replace(stages[stage], backward=Backward.NONE)
    return Graph(tuple(stages), tuple(edges), draw(names | st.just(f"chain:{count}")), fixed)


@st.composite
def placements(draw: DrawFn, stages: int) -> Placement:
    pipe = st.lists(few, min_size=stages, max_size=stages)
    pipes = draw(st.lists(pipe, min_size=1, max_size=2))
    dense = {device: i for i, device in enumerate(sorted({d for pipe in pipes for d in pipe}))}
    return Placement(tuple(tuple(dense[device] for device in pipe) for pipe in pipes))


@st.composite
def shared(draw: DrawFn, stages: int) -> tuple[Groups, Groups]:
    """Tied weights and norms."""
    several = st.lists(st.integers(0, stages - 1), min_size=2, max_size=3, unique=True)
    ties = draw(st.lists(several, max_size=2)) if stages > 1 else []
    cut = draw(st.integers(0, stages))
    norms = [group for group in (range(cut), range(cut, stages)) if len(group)]
    return tuple(tuple(sorted(tie)) for tie in ties), tuple(
        map(tuple, norms if draw(st.booleans()) else [])
    )


def expert_groups(pipe_of: list[int], pipes: int) -> SearchStrategy[Groups]:
    """All pipes in one group, where they have as many microbatches as each other."""
    counts = {pipe_of.count(pipe) for pipe in range(pipes)}
    return st.just(()) if len(counts) > 1 else st.sampled_from([(), (tuple(range(pipes)),)])


@st.composite
def actions(draw: DrawFn, graph: Graph, pipes: int, ties: Groups) -> Action:
    kinds = [kind for kind in Kind if graph.edges or not kind.is_wire]
    kind = draw(st.sampled_from(kinds))
    stage, edge = draw(st.integers(0, len(graph) - 1)), None
    if kind.is_wire:
        edge = draw(st.integers(0, len(graph.edges) - 1))
        stage = graph.edges[edge][EDGE_END[kind]]
    optional = st.none() | st.integers(0, 20)
    version, segment = draw(optional), draw(optional)
    if not kind.has_microbatch:
        pipe = draw(st.integers(0, pipes - 1))
        if ties and kind in (Kind.REDUCE, Kind.UPDATE, Kind.GATHER) and draw(st.booleans()):
            edge = draw(st.integers(0, len(ties) - 1))
            stage = draw(st.sampled_from(ties[edge]))
        return Action(stage, kind, version=version, pipe=pipe, edge=edge, segment=segment)
    span = draw(st.just(1) | st.integers(1, 3))
    return Action(stage, kind, draw(st.integers(0, 12)), span, version, 0, edge, segment)


def lanes(devices: int) -> SearchStrategy[Lane]:
    device = st.integers(0, devices - 1)
    ends = st.tuples(device, device, st.sampled_from(Direction))
    channel = ends.map(lambda given: Channel(*given))
    full = st.tuples(device, st.sampled_from(Stream), st.none() | channel)
    return device.map(Lane) | full.map(lambda given: Lane(*given))


@st.composite
def programs(draw: DrawFn) -> Program:
    graph = draw(graphs())
    placement = draw(placements(len(graph)))
    microbatches = draw(st.integers(1, 4))
    pipe = st.integers(0, len(placement.pipes) - 1)
    pipe_of = draw(st.lists(pipe, min_size=microbatches, max_size=microbatches))
    ties, norms = draw(shared(len(graph)))
    single = actions(graph, len(placement.pipes), ties)
    lane_list = draw(st.lists(lanes(placement.devices), unique=True, min_size=1, max_size=5))
    part = st.lists(single | st.builds(Pair, single, single), max_size=4)
    parts = [(draw(part), draw(part), draw(part)) for _ in lane_list]
    period = Period(
        tuple(_length(before) for before, _, _ in parts),
        tuple(_length(body) for _, body, _ in parts),
        draw(few),
        draw(few),
        draw(st.integers(1, 4)),
    )
    return Program.build(
        draw(names),
        placement,
        {
            lane: before + body + after
            for lane, (before, body, after) in zip(lane_list, parts, strict=True)
        },
        microbatches=microbatches,
        graph=graph,
        pipe_of=pipe_of,
        period=draw(st.none() | st.just(period)),
        is_stashing=draw(st.booleans()),
        ties=ties,
        norms=norms,
        expert_groups=draw(expert_groups(pipe_of, len(placement.pipes))),
    )


def _length(slots: list[Slot]) -> int:
    return sum(2 if isinstance(slot, Pair) else 1 for slot in slots)


def measurements(stages: int) -> SearchStrategy[Measurement]:
    spread = st.dictionaries(st.sampled_from(["forward", "backward", "update"]), per_stage(stages))
    return st.builds(
        Measurement,
        date=names,
        machine=st.dictionaries(names, names, max_size=2),
        model=st.dictionaries(names, amounts, max_size=2),
        ranks=st.integers(1, 9),
        transport=names,
        rounds=few,
        average=st.sampled_from(Average),
        spread=spread,
        hops=st.lists(st.tuples(amounts, amounts), max_size=2).map(tuple),
        r_squared=st.floats(-1, 1),
    )


def per_stage(stages: int) -> SearchStrategy[tuple[float, ...]]:
    return st.tuples(*[amounts] * stages)


@st.composite
def costs(draw: DrawFn) -> Cost:
    stages = draw(st.integers(1, 3))
    of_stages = per_stage(stages)
    limit = st.just(float("inf")) | st.floats(1, 1e12)
    link = st.builds(Link, amounts, limit)
    ends = st.tuples(few, few)
    kinds = st.sampled_from(["BF", "FI", "FF"])
    marks = st.tuples(*[st.sampled_from(Provenance)] * stages)
    return Cost(
        times=draw(st.builds(Times, *[of_stages] * 6, st.none() | of_stages)),
        memory=draw(st.builds(Memory, *[of_stages] * 5, limit, limit)),
        network=draw(
            st.builds(
                Network,
                st.lists(amounts, max_size=3).map(tuple),
                link,
                st.dictionaries(ends, link, max_size=2),
                link,
            )
        ),
        pairs=draw(st.dictionaries(kinds, amounts)),
        parts=draw(st.dictionaries(st.sampled_from("FI"), st.tuples(*[amounts] * 4))),
        sizes=draw(st.lists(amounts, max_size=3).map(tuple)),
        overhead=draw(amounts),
        is_barrier=draw(st.booleans()),
        measurement=draw(st.none() | measurements(stages)),
        provenance=draw(st.dictionaries(st.sampled_from(NAMES), marks)),
    )


@st.composite
def models(draw: DrawFn) -> Transformer:
    some = st.integers(1, 9)
    latents = st.fixed_dictionaries({"kv_rank": some, "query_rank": few, "rope_dim": few})
    experts = st.fixed_dictionaries(
        {
            "experts": st.integers(2, 9),
            "top_k": st.integers(1, 2),
            "shared_experts": few,
            "expert_ffn": some,
            "expert_nodes": few,
            "dense_layers": st.integers(0, 1),
        }
    )
    optional: dict[str, SearchStrategy[Any]] = {
        "microbatch": some,
        "head_dim": some,
        "is_gated": st.booleans(),
        "is_tied": st.booleans(),
        "is_causal": st.booleans(),
        "value_bytes": some,
        "source": names,
    }
    kv_heads = draw(st.integers(1, 3))
    others: dict[str, Any] = draw(st.fixed_dictionaries({}, optional=optional))
    return Transformer(
        layers=draw(some),
        hidden=12 * draw(some),
        heads=2 * kv_heads,
        kv_heads=kv_heads,
        ffn=draw(some),
        vocabulary=draw(some),
        sequence=draw(some),
        **others | draw(latents | st.just({})) | draw(experts | st.just({})),
    )


@st.composite
def devices(draw: DrawFn) -> Device:
    positive = st.floats(1e-3, 1e20)
    limit = st.just(float("inf")) | positive
    link = st.builds(Link, amounts, limit)
    point = st.builds(Point, positive, st.floats(0.01, 1), st.booleans())
    points = st.lists(point, max_size=3, unique_by=lambda each: each.flops)
    table = points.map(lambda given: tuple(sorted(given, key=lambda each: each.flops)))
    return Device(
        peak=draw(positive),
        bandwidth=draw(limit),
        memory=draw(limit),
        host=draw(link),
        near=draw(link),
        far=draw(link),
        per_node=draw(st.integers(1, 9)),
        matmul=draw(table),
        attention=draw(table),
        source=draw(names),
    )

"""GPipe: all forwards, then all backwards; on a chain or on any graph of stages."""

from collections.abc import Iterator

from weft.cost import Share
from weft.ir.actions import Action
from weft.ir.graph import Graph
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.lower import recompute, recompute_early
from weft.schedules.kit.graphs import graph_of, on_devices
from weft.schedules.kit.schedule import Claims, schedule
from weft.schedules.kit.shape import Shape


def _lane(stage: int, graph: Graph, shape: Shape) -> Iterator[Action]:
    """F0 F1 F2 F3 | B0 B1 B2 B3; a stage over the whole batch has one of each."""
    span = shape.microbatches if graph.stages[stage].is_whole_batch else 1
    is_learning = graph.stages[stage].is_learning
    for kind in (Kind.F, Kind.B) if is_learning else (Kind.F,):
        for microbatch in range(0, shape.microbatches, span):
            yield Action(stage, kind, microbatch, span)


def _seconds(shape: Shape, share: Share) -> float:
    devices, microbatches = shape.devices, shape.microbatches
    forward, backward, again = share.forward, share.backward, share.forward
    match shape.variant:
        case "recompute":
            return (microbatches + devices - 1) * (forward + again + backward)
        case "recompute-early":
            fill = (devices - 1) * (forward + backward)
            return fill + microbatches * (forward + again + backward)
        case _:
            return (microbatches + devices - 1) * (forward + backward)


@schedule(
    name="gpipe",
    summary="all forwards, then all backwards",
    paper="Huang et al. 2019, GPipe (arXiv 1811.06965)",
    claims=Claims(
        formula="(N + D - 1)(F + B)",
        seconds=_seconds,
        peak_formula="N",
        peak=lambda shape, device: shape.microbatches,
        holds=lambda shape, share: shape.graph is None,
    ),
    variants={
        "recompute": "keep inputs only; run the forward again once the gradient is there",
        "recompute-early": "the same, but run the forward again before the gradient arrives",
    },
    takes_graph=True,
)
def gpipe(shape: Shape) -> Program:
    graph = graph_of(shape)
    lanes = [_lane(stage, graph, shape) for stage in range(len(graph))]
    program = on_devices("gpipe", graph, lanes, shape)
    match shape.variant:
        case "recompute":
            return recompute(program)
        case "recompute-early":
            return recompute_early(program)
        case _:
            return program

"""GPipe: all forwards, then all backwards; on a chain or on any graph of stages."""

from collections.abc import Iterator

from weft.cost import Share
from weft.ir.actions import Action, Pair
from weft.ir.graph import Backward, Graph
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.schedules.kit.graphs import graph_of, on_devices
from weft.schedules.kit.schedule import Claims, schedule
from weft.schedules.kit.shape import Shape


def _lane(stage: int, graph: Graph, shape: Shape) -> Iterator[Action | Pair]:
    """F0 F1 F2 F3 | B0 B1 B2 B3, each B with its R before it where the stage is recomputed."""
    whole = graph.stages[stage].is_whole_batch
    span = shape.microbatches if whole else 1
    for microbatch in range(0, shape.microbatches, span):
        yield Action(stage, Kind.F, microbatch, span)
    if graph.stages[stage].backward is Backward.NONE:
        return
    for microbatch in range(0, shape.microbatches, span):
        again = Action(stage, Kind.R, microbatch, span)
        backward = Action(stage, Kind.B, microbatch, span)
        if shape.variant == "recompute":
            yield Pair(again, backward)
        elif shape.variant == "recompute-early":
            yield from (again, backward)
        else:
            yield backward


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
    return on_devices("gpipe", graph, lanes, shape)

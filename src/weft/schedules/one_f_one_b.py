"""1F1B: as many forwards as it takes to reach the end and come back, then one for one."""

from weft.cost import Share
from weft.ir.actions import Actions
from weft.ir.graph import Backward, Graph
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.schedules.kit.graphs import graph_of, on_devices
from weft.schedules.kit.orders import one_forward_one_backward
from weft.schedules.kit.schedule import Claims, Need, schedule
from weft.schedules.kit.shape import Shape


def _lane(stage: int, graph: Graph, shape: Shape) -> Actions:
    """The warm-up is the stage's height above the loss; on a chain that is D - 1 - d."""
    forward = Actions.of(stage, Kind.F, range(shape.microbatches))
    if graph.stages[stage].backward is Backward.NONE:
        return forward
    warmup = min(graph.heights[stage], shape.microbatches)
    return one_forward_one_backward(forward, forward.replace(kind=Kind.B), warmup=warmup)


def _seconds(shape: Shape, share: Share) -> float:
    height = max(graph_of(shape).heights)
    return (shape.microbatches + height) * (share.forward + share.backward)


def _sees_parts(shape: Shape) -> bool:
    return not any(stage.is_whole_batch for stage in graph_of(shape).stages)


def _is_even(shape: Shape, share: Share) -> bool:
    """Equal stages, each on its own device."""
    return len({stage.cost for stage in graph_of(shape).stages}) == 1 and shape.placement is None


@schedule(
    name="1f1b",
    summary="one forward, one backward: GPipe's time at the memory of the pipe's depth",
    paper="Fan et al. 2021, DAPPLE (arXiv 2007.01045); PipeDream-flush (arXiv 2006.09503)",
    claims=Claims(
        formula="(N + D - 1)(F + B); on a graph D - 1 is its longest path",
        seconds=_seconds,
        peak_formula="min(N, D - d); on a graph 1 + the stage's longest path to the end",
        peak=lambda shape, device: min(shape.microbatches, graph_of(shape).heights[device] + 1),
        holds=_is_even,
    ),
    needs=[
        Need(
            "stages that see one microbatch at a time: a stage over the whole batch holds every"
            " backward until the last forward; use gpipe",
            _sees_parts,
            lambda shape: shape.but(graph=None, placement=None),
        )
    ],
    takes_graph=True,
)
def one_f_one_b(shape: Shape) -> Program:
    graph = graph_of(shape)
    lanes = [_lane(stage, graph, shape) for stage in range(len(graph))]
    return on_devices("1f1b", graph, lanes, shape)

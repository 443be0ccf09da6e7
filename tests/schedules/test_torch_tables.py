"""Agreement with torch.distributed.pipelining's own multi-stage tables, action by action."""

from __future__ import annotations

import pytest

from weft.ir.actions import Action, Pair
from weft.ir.kinds import Kind
from weft.schedules import REGISTRY, Shape
from weft.simulate import simulate

visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")

EQUAL = [
    ("interleaved-1f1b", "Interleaved1F1B", (2, 3)),
    ("interleaved-zb1p", "InterleavedZeroBubble", (2, 3)),
    ("zbv", "ZBVZeroBubble", (2,)),
    ("dualpipev", "DualPipeV", (2,)),
]
KINDS = {
    "FORWARD": Kind.F,
    "FULL_BACKWARD": Kind.B,
    "BACKWARD_INPUT": Kind.I,
    "BACKWARD_WEIGHT": Kind.W,
}

Lanes = list[list[Action | Pair]]


def _action(theirs: object) -> Action | Pair:
    members = getattr(theirs, "sub_actions", None)
    if members:
        first, second = (_action(member) for member in members)
        assert isinstance(first, Action)
        assert isinstance(second, Action)
        return Pair(first, second)
    kind = KINDS[theirs.computation_type.name]  # type: ignore[attr-defined]
    return Action(theirs.stage_index, kind, theirs.microbatch_index)  # type: ignore[attr-defined]


def torch_lanes(name: str, shape: Shape) -> Lanes:
    """torch's order of each rank, without its idle slots."""
    rows = visualizer.get_schedule_ops(
        name, shape.devices, shape.microbatches, shape.stages_per_device
    )
    return [[_action(cell) for cell in row if cell is not None] for row in rows]


def _shapes(turns: tuple[int, ...], least: int) -> list[Shape]:
    return [
        Shape(devices=devices, microbatches=factor * devices, stages_per_device=stages)
        for devices in (2, 3, 4, 8)
        for factor in (least, least + 1, 4)
        for stages in turns
    ]


@pytest.mark.parametrize(("ours", "theirs", "turns"), EQUAL, ids=lambda value: str(value))
def test_same_order_as_torch(ours: str, theirs: str, turns: tuple[int, ...]) -> None:
    schedule = REGISTRY[ours]
    for shape in _shapes(turns, least=2 if ours == "dualpipev" else 1):
        program = schedule.program(shape)
        lanes = [list(program.lane(device).slots()) for device in range(shape.devices)]
        assert lanes == torch_lanes(theirs, shape), shape


def test_looped_bfs_takes_torchs_time() -> None:
    """torch runs the backwards of a stage in reverse; time and memory are the same."""
    for shape in _shapes((2, 3), least=1):
        program = REGISTRY["looped-bfs"].program(shape)
        theirs = program.with_lanes(
            dict(zip(program.lanes, torch_lanes("LoopedBFS", shape), strict=True))
        )
        assert theirs != program
        assert simulate(theirs).makespan == simulate(program).makespan
        assert simulate(theirs).peak_activations == simulate(program).peak_activations

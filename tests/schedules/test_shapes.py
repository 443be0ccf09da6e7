"""What schedules accept, and what they say when they do not."""

from __future__ import annotations

import pytest

from tests.cli.running import weft_json
from weft.errors import InputError, ShapeError, UnknownSchedule
from weft.ir.graph import Graph, Stage
from weft.ir.placement import Placement
from weft.schedules import (
    REGISTRY,
    Schedule,
    Shape,
    chimera,
    dualpipe,
    interleaved_1f1b,
    one_f_one_b,
)
from weft.simulate import simulate
from weft.web.requests import read_request


@pytest.mark.parametrize(
    ("name", "shape", "reason", "nearest"),
    [
        ("chimera", {"devices": 3}, "even number of devices", "4 devices"),
        ("chimera", {"microbatches": 6}, "multiple of D", "8 microbatches"),
        ("chimera", {"pipes": 4}, "divide half the devices", "2 pipes"),
        ("chimera", {"stages_per_device": 2}, "exactly 1 stage per", "1 stage per device"),
        ("dualpipe", {"microbatches": 6}, "twice as many", "8 microbatches"),
        ("dualpipe", {"microbatches": 9}, "even number of micro", "10 microbatches"),
        ("dualpipev", {"stages_per_device": 1}, "exactly 2 stages", "2 stages per device"),
        ("interleaved-1f1b", {"microbatches": 3}, "as many microbatches as", "4 microbatches"),
        ("1f1b", {"variant": "lean"}, "own variants", "no variant"),
        ("gpipe", {"variant": "early"}, "recompute or recompute-early", "no variant"),
        ("zbv", {"pipes": 2}, "single pipeline", "1 pipe"),
    ],
)
def test_refusals_name_the_reason_and_the_nearest(
    name: str, shape: dict[str, object], reason: str, nearest: str
) -> None:
    schedule = REGISTRY[name]
    given = {"devices": 4, "microbatches": 8} | shape
    with pytest.raises(ShapeError) as caught:
        schedule(**given)
    assert reason in str(caught.value)
    assert nearest in str(caught.value)


def test_only_graph_schedules_take_graphs() -> None:
    shape = Shape.of_graph(Graph.two_tower(1), microbatches=4)
    with pytest.raises(ShapeError, match="chain of stages"):
        REGISTRY["zb-h1"].program(shape)


@pytest.mark.parametrize("field", ["devices", "microbatches", "stages_per_device", "pipes"])
def test_nothing_is_less_than_one(field: str) -> None:
    with pytest.raises(InputError, match="at least 1"):
        Shape(**({"devices": 4, "microbatches": 8} | {field: 0}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("typed", "meant"), [("1f1", "1f1b"), ("interleaved", "interleaved-1f1b"), ("zb_h1", "zb-h1")]
)
def test_an_unknown_name_suggests_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(UnknownSchedule, match=f"Did you mean {meant}"):
        REGISTRY[typed]


def test_schedules_are_functions_of_a_shape() -> None:
    program = interleaved_1f1b(devices=4, microbatches=16, stages_per_device=2)
    assert program.stages == 8
    assert chimera(devices=4, microbatches=8, pipes=2).placement.weight_copies == 4
    assert dualpipe(devices=4, microbatches=8).pipe_of == (0,) * 4 + (1,) * 4


def test_1f1b_on_unequal_towers() -> None:
    """A text tower of 2 and an image tower of 4: each stage counts its own way to the join."""
    edges = ((0, 1), (1, 6), (2, 3), (3, 4), (4, 5), (5, 6))
    graph = Graph((Stage(),) * 7, edges)
    program = one_f_one_b.program(Shape.of_graph(graph, microbatches=8))
    timeline = simulate(program)
    assert timeline.peak_activations == [3, 2, 5, 4, 3, 2, 1]
    assert timeline.makespan == (8 + 4) * 3


def test_1f1b_on_inception() -> None:
    program = one_f_one_b.program(Shape.of_graph(Graph.inception(), microbatches=8))
    timeline = simulate(program)
    assert timeline.makespan == 30
    assert timeline.bubble.wall == pytest.approx(0.2)
    assert timeline.peak_activations == [3, 2, 2, 2, 2, 1]


def test_a_whole_batch_stage_is_gpipe_shaped() -> None:
    graph = Graph((Stage(), Stage(), Stage("contrast", is_whole_batch=True)), ((0, 2), (1, 2)))
    shape = Shape.of_graph(graph, microbatches=4)
    with pytest.raises(ShapeError, match="use gpipe"):
        one_f_one_b.program(shape)
    timeline = simulate(REGISTRY["gpipe"].program(shape))
    # All four forwards of the towers, the whole batch forward and back, then four backwards.
    assert timeline.makespan == 4 + 4 * 3 + 4 * 2


@pytest.mark.parametrize(
    ("name", "variant"),
    [("1f1b", ""), ("gpipe", ""), ("gpipe", "recompute"), ("gpipe", "recompute-early")],
)
def test_stages_that_share_a_device_are_merged(name: str, variant: str) -> None:
    """Two towers of 2, each on one device, and the join with the second."""
    placement = Placement(((0, 0, 1, 1, 1),))
    shape = Shape.of_graph(Graph.two_tower(2), placement, microbatches=8, variant=variant)
    program = REGISTRY[name].program(shape)
    assert program.devices == 2
    timeline = simulate(program)
    busiest = timeline.device_work.max()
    assert timeline.makespan <= 1.35 * busiest


@pytest.mark.parametrize("schedule", list(REGISTRY), ids=lambda schedule: schedule.name)
def test_stages_on_a_device_have_one_default(schedule: Schedule) -> None:
    """In Python, `draw`, `simulate`, `compare` and the live page: two for what loops."""
    usual = schedule.stages_for()
    assert usual == (2 if schedule.stages_per_device[1] is None else schedule.stages_per_device[0])
    sizes = {"devices": 4, "microbatches": 8}
    stages = {
        "Python": schedule(**sizes).stages,
        "simulate": weft_json("simulate", schedule.name, "-d", "4", "-n", "8")["stages"],
        "compare": weft_json("compare", schedule.name, "-d", "4", "-n", "8")["rows"][0]["stages"],
        "explain": weft_json("explain", schedule.name, "-d", "4", "-n", "8")["stages"],
        "page": read_request({"schedule": schedule.name, **sizes}).shape.stages,
    }
    assert stages == dict.fromkeys(stages, 4 * usual)

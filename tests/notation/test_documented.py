"""Every example of a file that the documents show is read, and a cost fits what it says it fits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.cli.running import weft, weft_json
from weft.cost import Cost
from weft.notation import from_json, graph_from_json
from weft.notation.json import cost, descriptions, graph, measurement, program, timeline
from weft.schedules import REGISTRY, Schedule

NOTATION = Path(__file__).parents[2] / "docs" / "notation.md"
MODULES = (cost, descriptions, program, timeline)

each_graph = pytest.mark.parametrize(
    "shape",
    [
        "inception",
        "two-tower:2",
        '{"stages": 3, "edges": []}',
        '{"stages": 4, "edges": [[0, 3], [1, 3]]}',
        '{"stages": 4, "edges": [[0, 1], [0, 2], [1, 3], [2, 3]], "devices": [0, 1, 1, 0]}',
        '{"stages": [{"backward": "none"}, {}, {"whole_batch": true}]}',
    ],
)


def examples(module: ModuleType) -> list[str]:
    """The JSON of a docstring: paragraphs that are indented and begin with a brace."""
    paragraphs = re.split(r"\n\n", module.__doc__ or "")
    return [text for text in paragraphs if text.startswith("    {")]


def pages() -> Iterator[str]:
    yield from re.findall(r"```json\n(.*?)```", NOTATION.read_text(), re.DOTALL)


DOCUMENTS = [*(text for module in MODULES for text in examples(module)), *pages()]


@pytest.mark.parametrize("text", DOCUMENTS)
def test_an_example_of_a_document_is_read(text: str) -> None:
    assert from_json(text) is not None


def test_every_module_and_the_page_have_an_example() -> None:
    assert all(examples(module) for module in (*MODULES, graph, measurement))
    assert len(list(pages())) == 3


def test_the_example_of_a_graph_is_read() -> None:
    (text,) = examples(graph)
    assert graph_from_json(text)[0].name == "diamond"


def test_the_example_of_a_measurement_is_read_beside_a_cost() -> None:
    (text,) = examples(measurement)
    stages = [{"forward": 1}] * 4
    found = from_json(
        json.dumps({**least_cost(4), "stages": stages, "measurement": json.loads(text)})
    )
    assert isinstance(found, Cost)
    assert found.measurement is not None
    assert found.measurement.ranks == 4


def least_cost(stages: int) -> dict[str, object]:
    """All that a cost needs."""
    return {"format": "weft.cost", "version": 1, "stages": [{"forward": 1}] * stages}


@each_graph
@pytest.mark.parametrize("more", [{}, {"message": 5}, {"message": 5, "link": {"bandwidth": 10}}])
@pytest.mark.parametrize("command", ["simulate", "draw", "explain", "verify"])
def test_a_cost_of_stages_alone_fits_every_graph(
    command: str, shape: str, more: dict[str, object], tmp_path: Path
) -> None:
    if shape.startswith("{"):
        path = tmp_path / "graph.json"
        path.write_text(shape)
        shape = str(path)
        stages = len(graph_from_json(path.read_text())[0])
    else:
        stages = 6 if shape == "inception" else 5
    costs = tmp_path / "cost.json"
    costs.write_text(json.dumps({**least_cost(stages), **more}))
    result = weft(command, "gpipe", "--graph", shape, "--cost", str(costs))
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("schedule", list(REGISTRY), ids=lambda schedule: schedule.name)
def test_a_cost_of_stages_alone_fits_every_schedule(schedule: Schedule, tmp_path: Path) -> None:
    costs = tmp_path / "cost.json"
    stages = schedule(devices=4, microbatches=8).stages
    costs.write_text(json.dumps(least_cost(stages)))
    result = weft("simulate", schedule.name, "-d", "4", "-n", "8", "--cost", str(costs))
    assert result.exit_code == 0, result.stderr


def test_one_message_for_all_edges_costs_what_one_for_each_does(tmp_path: Path) -> None:
    link = {"link": {"bandwidth": 10}}
    times = []
    for message in (5, [5] * 8):
        costs = tmp_path / "cost.json"
        costs.write_text(json.dumps({**least_cost(6), **link, "message": message}))
        words = ("simulate", "gpipe", "--graph", "inception", "--cost", str(costs), "--json")
        times.append(weft(*words).stdout)
    assert times[0] == times[1]


def test_seconds_of_a_file_are_those_of_a_whole_microbatch(tmp_path: Path) -> None:
    """Where a method cuts microbatches in two, each half takes half of them."""
    costs = tmp_path / "cost.json"
    stage = {"forward": 1, "input_grad": 1, "weight_grad": 1}
    costs.write_text(json.dumps({**least_cost(4), "stages": [stage] * 4}))
    words = ("simulate", "chimera", "--variant", "halving", "-d", "4", "-n", "8")
    by_file, by_default = weft_json(*words, "--cost", str(costs)), weft_json(*words)
    assert by_file["makespan"] == by_default["makespan"] == 26

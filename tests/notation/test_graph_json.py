from __future__ import annotations

import pytest

from weft.errors import NotationError
from weft.ir.graph import Backward, Graph, Stage
from weft.ir.placement import Placement
from weft.notation import graph_from_json


def test_a_count_of_stages_is_a_chain_with_a_device_each() -> None:
    assert graph_from_json('{"stages": 3}') == (Graph.chain(3), Placement.straight(3))


def test_stages_edges_and_devices_may_be_listed() -> None:
    text = """{
        "name": "join",
        "stages": [{}, {"name": "right", "cost": 2},
                   {"backward": "input", "whole_batch": true}],
        "edges": [[0, 2], [1, 2]],
        "devices": [0, 0, 1]
    }"""
    graph, placement = graph_from_json(text)
    assert graph.stages == (
        Stage(),
        Stage("right", 2),
        Stage(backward=Backward.INPUT, is_whole_batch=True),
    )
    assert graph.edges == ((0, 2), (1, 2))
    assert graph.name == "join"
    assert placement == Placement(((0, 0, 1),))


def test_no_edges_is_not_a_chain() -> None:
    assert graph_from_json('{"stages": 2, "edges": []}')[0].edges == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "stages is missing"),
        ('{"stages": 0}', "stages: 0"),
        ('{"stages": 1000000000000}', "stages: 1000000000000"),
        ('{"stages": 2, "nodes": 2}', "'nodes' is not a key here"),
        ('{"stages": 2, "edges": [[1, 0]]}', "edges[0]: edge 1 -> 0"),
        ('{"stages": 2, "devices": [0]}', "devices: 1 items where 2 belong"),
        ('{"stages": 2, "devices": [0, 5]}', "devices: devices are numbered from 0"),
    ],
)
def test_what_is_no_graph_is_refused(text: str, reason: str) -> None:
    with pytest.raises(NotationError) as refusal:
        graph_from_json(text, source="graph.json")
    assert reason in refusal.value.reason
    assert refusal.value.source == "graph.json"

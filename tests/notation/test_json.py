from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tests.notation.examples import one_f_one_b, two_pipes
from tests.notation.strategies import costs, devices, models, programs
from weft.cost import DEVICES, MODELS, Cost, Device, Provenance, Transformer, derive
from weft.errors import NotationError
from weft.ir.program import Program
from weft.notation import from_json, to_json
from weft.simulate import simulate
from weft.timeline import Timeline

PROGRAM = json.loads(to_json(one_f_one_b(devices=2, microbatches=2)))
WIRED = json.loads(to_json(two_pipes()))
TIMELINE = json.loads(to_json(simulate(one_f_one_b(devices=2, microbatches=2))))
MODEL = json.loads(to_json(MODELS["deepseek-v3"]))
DEVICE = json.loads(to_json(DEVICES["h200"]))
COST = {"format": "weft.cost", "version": 1, "stages": [{"forward": 1}, {"forward": 2}]}

PERIOD = {"microbatches": 2, "versions": 1, "repeats": 1}


def changed(document: dict[str, Any], path: str, value: object) -> str:
    """A document with one member changed; dots and numbers lead to it."""
    root = json.loads(json.dumps(document))
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    node = root
    for key in parents:
        node = node[key]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return json.dumps(root)


def refusal_of(text: str) -> NotationError:
    with pytest.raises(NotationError) as refusal:
        from_json(text, source="mine.json")
    assert refusal.value.source == "mine.json"
    return refusal.value


def test_a_program_is_facts_lanes_and_columns() -> None:
    assert PROGRAM == {
        "format": "weft.program",
        "version": 1,
        "name": "1f1b",
        "microbatches": 2,
        "graph": {"name": "chain:2", "stages": 2},
        "placement": [[0, 1]],
        "lanes": [{"device": 0, "actions": 4}, {"device": 1, "actions": 4}],
        "columns": {
            "stage": [0, 0, 0, 0, 1, 1, 1, 1],
            "kind": ["F", "F", "B", "B", "F", "B", "F", "B"],
            "microbatch": [0, 1, 0, 1, 0, 0, 1, 1],
        },
    }


@settings(max_examples=60, deadline=None)
@given(programs())
def test_every_program_comes_back(program: Program) -> None:
    back = from_json(to_json(program))
    assert isinstance(back, Program)
    assert back == program
    assert (back.name, back.graph.name) == (program.name, program.graph.name)


@settings(max_examples=60, deadline=None)
@given(costs())
def test_every_cost_comes_back(cost: Cost) -> None:
    assert from_json(to_json(cost)) == cost


@settings(max_examples=60, deadline=None)
@given(models() | devices())
def test_every_model_and_device_comes_back(described: Transformer | Device) -> None:
    assert from_json(to_json(described)) == described


@pytest.mark.parametrize("described", [*MODELS.values(), *DEVICES.values()])
def test_every_preset_comes_back(described: Transformer | Device) -> None:
    assert from_json(to_json(described)) == described


def test_a_model_and_a_device_are_their_fields() -> None:
    small = Transformer(
        layers=2, hidden=8, heads=2, ffn=32, vocabulary=9, sequence=4, is_gated=False
    )
    assert json.loads(to_json(small)) == {
        **{"format": "weft.model", "version": 1, "layers": 2, "hidden": 8, "heads": 2, "ffn": 32},
        **{"vocabulary": 9, "sequence": 4, "kv_heads": 2, "head_dim": 4, "gated": False},
    }
    assert json.loads(to_json(Device(peak=1e12))) == {
        "format": "weft.device",
        "version": 1,
        "peak": 1e12,
    }


def test_a_number_of_numpys_is_written_as_any_other() -> None:
    assert from_json(to_json(Device(peak=np.int64(8)))) == Device(peak=8)  # type: ignore[arg-type]


def test_a_derived_cost_keeps_its_provenance() -> None:
    cost = derive(one_f_one_b(devices=4, microbatches=8), MODELS["gpt-cpu"], DEVICES["cpu"])
    back = from_json(to_json(cost))
    assert back == cost
    assert isinstance(back, Cost)
    assert set(back.provenance["weight_grad"]) == {Provenance.INTERPOLATED}
    assert set(back.provenance["network"]) == {Provenance.DERIVED}
    assert "provenance" not in TIMELINE["cost"]


def test_a_timeline_comes_back() -> None:
    timeline = simulate(one_f_one_b(devices=3, microbatches=5))
    back = from_json(to_json(timeline))
    assert isinstance(back, Timeline)
    assert (back.program, back.cost) == (timeline.program, timeline.cost)
    assert not back.is_measured
    np.testing.assert_array_equal(back.start, timeline.start)
    np.testing.assert_array_equal(back.end, timeline.end)


def test_a_measured_timeline_says_so() -> None:
    back = from_json(changed(TIMELINE, "measured", True))
    assert isinstance(back, Timeline)
    assert back.is_measured


def test_a_timeline_that_never_ends_cannot_be_written() -> None:
    timeline = simulate(one_f_one_b(devices=2, microbatches=2))
    endless = Timeline(timeline.program, timeline.cost, timeline.start, timeline.end + np.inf)
    with pytest.raises(NotationError, match="finite numbers only"):
        to_json(endless)


def test_262144_actions_come_back() -> None:
    program = one_f_one_b(devices=64, microbatches=2048)
    assert from_json(to_json(program)) == program


def test_a_cost_by_hand_needs_forward_times_only() -> None:
    cost = from_json(json.dumps(COST))
    assert isinstance(cost, Cost)
    assert cost.times.forward == cost.times.recompute == (1.0, 2.0)
    assert cost.times.input_grad == cost.memory.weights == (0.0, 0.0)
    assert cost.network.message == 0.0
    assert np.isinf([cost.memory.capacity, cost.network.default.bandwidth]).all()
    assert cost.is_barrier


def test_a_cost_by_hand_says_one_message_for_every_edge_and_null_for_no_limit() -> None:
    given = {**COST, "message": 5, "capacity": None, "link": {"latency": 2, "bandwidth": None}}
    cost = from_json(json.dumps(given))
    assert isinstance(cost, Cost)
    assert cost.network.message == 5.0
    assert from_json(to_json(cost)) == cost
    assert cost.network.default.latency == 2
    assert np.isinf([cost.memory.capacity, cost.network.default.bandwidth]).all()


def test_a_pair_may_name_its_kinds_in_either_order() -> None:
    cost = from_json(json.dumps({**COST, "pairs": {"FB": 0.5}}))
    assert isinstance(cost, Cost)
    assert cost.pairs == {"BF": 0.5}


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "not JSON: it ends too early"),
        ('{"format":\n "weft.program",\n', 3, "not JSON"),
        ('{"format": "weft.prog', 1, "not JSON: it ends too early"),
        ('{"format": "weft.cost", "ver\n', 1, "not JSON: it ends too early"),
        ('{"format": "weft.program"} and more', 1, "not JSON: Extra data at column 28"),
        ('{"format": "a\x00b"}', 1, "not JSON: Invalid control character at column 14"),
        ("[" * 100_000, None, "nested too deeply"),
        ('{"a":' * 100_000, None, "nested too deeply"),
        ('{"format": NaN}', None, "NaN is no number"),
        ('{"format": -Infinity}', None, "-Infinity is no number"),
        ('{"version": ' + "1" * 5000 + "}", None, "too many digits"),
        ('{"format": 1, "format": 1}', None, "'format' stands twice"),
        ("[]", None, "a list where an object belongs"),
        ("3", None, "3 where an object belongs"),
        ("{}", None, 'no "format"'),
        ('{"format": 3}', None, "format: 3 where a text belongs"),
        ('{"format": "weft.graph"}', None, "one of weft.program, weft.cost, weft.timeline"),
        ('{"format": "weft.program"}', None, "version is missing"),
        ('{"format": "weft.program", "version": 1}', None, "microbatches is missing"),
    ],
)
def test_what_is_no_document_is_refused(text: str, line: int | None, reason: str) -> None:
    refusal = refusal_of(text)
    assert reason in refusal.reason
    assert refusal.line == line


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("version", 2, "version: 2 where 1, the version that this Weft reads, belongs"),
        ("version", True, "version: true where a whole number"),
        ("colour", "red", "'colour' is not a key here"),
        ("name", "\ud800", "name: '\\ud800' where a text belongs"),
        ("name", 1, "name: 1 where a text belongs"),
        ("microbatches", 0, "microbatches: 0 where a whole number from 1"),
        ("microbatches", -1, "microbatches: -1"),
        ("microbatches", 2.5, "microbatches: 2.5"),
        ("microbatches", "2", "microbatches: '2'"),
        ("microbatches", 10**12, "microbatches: 1000000000000"),
        ("microbatches", 10**8, "at most 4,000,000"),
        ("graph", 3, "graph: 3 where an object belongs"),
        ("graph.stages", 10**9, "graph.stages: 1000000000"),
        ("graph.stages", 10**8, "graph.stages: 100,000,000 stages; Weft reads at most 65,536"),
        ("graph.stages", [], "graph.stages: a graph needs at least one stage"),
        ("graph.stages", [{"cost": "1"}], "graph.stages[0].cost: '1' where a number belongs"),
        ("graph.stages", [{"cost": -1}], "graph.stages[0].cost: -1"),
        ("graph.stages", [{"backward": "half"}], "one of full, input, none"),
        ("graph.stages", [{"whole_batch": 1}], "graph.stages[0].whole_batch: 1"),
        ("graph.edges", [[0, 1], [1, 0]], "graph.edges[1]: edge 1 -> 0"),
        ("graph.edges", [[0, 1], [0, 1]], "graph.edges: an edge is listed twice"),
        ("graph.edges", [[0]], "graph.edges[0]: 1 items where 2 belong"),
        ("placement", [[0, 2]], "placement: devices are numbered from 0"),
        ("placement", [[0, 1]] * 65, "placement: 65 pipes; Weft reads at most 64"),
        ("placement", [], "placement: a placement gives every stage"),
        ("placement", [[0]], "placement[0]: 1 items where 2 belong"),
        ("placement", [[0, "1"]], "placement[0][1]: '1'"),
        ("pipes", [0, 1], "pipes: pipe 1, but the placement has 1"),
        ("pipes", [0], "pipes: 1 items where 2 belong"),
        ("stashing", 0, "stashing: 0 where true or false belongs"),
        ("period", PERIOD, "lanes[0]: prologue is missing"),
        ("ties", [[0]], "ties: the program: a tied weight has two stages or more"),
        ("ties", [[0, 2]], "ties: the program: a tied weight names stage 2"),
        ("ties", [[0, "1"]], "ties[0][1]: '1'"),
        ("norms", [[0], [0, 1]], "norms: the program: a stage shares one norm"),
        ("norms", 3, "norms: 3 where a list belongs"),
        ("lanes.0.device", 5, "lanes[0]: device 5"),
        ("lanes.1.device", 0, "lanes[1]: this lane stands twice"),
        ("lanes.1.stream", "disk", "lanes[1].stream: 'disk' where one of compute"),
        ("lanes.1.channel", {}, "lanes[1].channel: source is missing"),
        ("lanes.1.actions", ..., "lanes[1]: actions is missing"),
        ("lanes.1.actions", 3, "columns.stage: 8 items where 7 belong"),
        ("lanes.1.actions", 10**8, "lanes: more than the 2,000,000 actions"),
        ("lanes.1.body", 2, "lanes[1]: 'body' is not a key here"),
        ("columns.stage", ..., "columns: stage is missing"),
        ("columns.colour", 1, "columns: 'colour' is not a key here"),
        ("columns.stage.3", 2, "lanes[0]: 2B1, action 3 of its lane: stages are 0 to 1"),
        ("columns.stage.3", -1, "columns.stage[3]: -1"),
        ("columns.stage.3", 1.0, "columns.stage[3]: 1.0"),
        ("columns.kind.3", "X", "columns.kind[3]: 'X' where one of F, B"),
        ("columns.kind.3", 1, "columns.kind[3]: 1 where a text belongs"),
        ("columns.kind.3", "UPDATE", "lanes[0]: 0U1, action 3 of its lane: it belongs to no"),
        (
            "columns.kind.3",
            "SEND_ACTIVATION",
            "lanes[0]: send:0F1, action 3 of its lane: the graph",
        ),
        ("columns.microbatch.3", -1, "lanes[0]: 0B, action 3 of its lane: it names no microbatch"),
        ("columns.microbatch.3", -2, "columns.microbatch[3]: -2"),
        ("columns.microbatch.3", 10**10, "columns.microbatch[3]: 10000000000"),
        ("columns.microbatch.3", 10**8, "stages (or edges) x microbatches that Weft reads"),
        ("columns.span", 0, "columns.span: 0"),
        ("columns.span", 10**8, "columns: more than the 2,000,000 actions"),
        ("columns.pipe", 1, "pipes are 0 to 0"),
        ("columns.edge", 0, "only a send or a receive names an edge"),
        ("columns.segment", 5000, "at most 4096 segments"),
        ("columns.joined", 1, "a pair joins an action to the one before it"),
        ("columns.joined", [0, 1, 1, 0, 0, 0, 0, 0], "lanes[0]: 0B0, action 2 of its lane: a pair"),
        ("columns.joined", [0, 2, 0, 0, 0, 0, 0, 0], "`joined` is 0 or 1"),
    ],
)
def test_what_no_program_holds_is_refused_by_path(path: str, value: object, reason: str) -> None:
    assert reason in refusal_of(changed(PROGRAM, path, value)).reason


def test_an_edge_must_exist_and_end_at_the_stage_of_its_send() -> None:
    edges = WIRED["columns"]["edge"]
    missing = changed(WIRED, f"columns.edge.{len(edges) - 1}", 7)
    assert "lanes[2]: send:0F0, action 0 of its lane: the graph has 1 edges" in str(
        refusal_of(missing)
    )
    astray = changed(WIRED, f"columns.stage.{len(edges) - 1}", 1)
    assert "stands at an end of its edge" in str(refusal_of(astray))


def test_updates_repeated_many_times_are_refused() -> None:
    document = json.loads(json.dumps(PROGRAM))
    document["lanes"][0]["actions"] = 20
    document["lanes"][1]["actions"] = 0
    document["columns"] = {"stage": 0, "kind": "UPDATE", "microbatch": -1, "version": 0}
    assert "columns: 19 updates" in refusal_of(json.dumps(document)).reason
    document["columns"]["version"] = list(range(20))
    assert isinstance(from_json(json.dumps(document)), Program)


def test_a_period_cuts_lanes_between_slots() -> None:
    document = json.loads(changed(WIRED, "period", PERIOD))
    for lane in document["lanes"]:
        lane |= {"prologue": 0, "body": lane["actions"]}
    assert isinstance(from_json(json.dumps(document)), Program)
    inside = changed(document, "lanes.0.body", 3)
    assert "lanes[0]: prologue and body end between slots" in str(refusal_of(inside))
    beyond = changed(document, "lanes.0.prologue", 1)
    assert "lanes[0]: prologue and body are 5 of 4 actions" in str(refusal_of(beyond))


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("version", 2, "version: 2"),
        ("stages", [], "stages: a cost describes at least one stage"),
        ("stages", 3, "stages: 3 where a list belongs"),
        ("stages.1", {}, "stages[1]: forward is missing"),
        ("stages.1.forwrad", 1, "stages[1]: 'forwrad' is not a key here"),
        ("stages.1.forward", "1", "stages[1].forward: '1' where a number belongs"),
        ("stages.1.forward", True, "stages[1].forward: true"),
        ("stages.1.forward", None, "stages[1].forward: null"),
        ("stages.1.forward", -1, "forward of stage 1 is -1.0"),
        ("stages.1.forward", 10**400, "where a finite number belongs"),
        ("message", [-1], "message of edge 0 is -1.0"),
        ("message", "big", "message: 'big'"),
        ("link", {"bandwidth": 0}, "bandwidth of link"),
        ("link", {"speed": 1}, "link: 'speed' is not a key here"),
        ("links", [{"from": 0}], "links[0]: to is missing"),
        ("links", [{"from": 0, "to": 1}] * 2, "links[1]: the link from 0 to 1 stands twice"),
        ("pairs", {"FX": 1}, "'FX' is no pair"),
        ("pairs", {"FB": 1, "BF": 1}, "the pair BF stands twice"),
        ("parts", {"W": [1, 1, 1, 1]}, "parts: 'W' is not a key here; known are F, I"),
        ("parts", {"F": [1, 1, 1]}, "parts.F: 3 items where 4 belong"),
        ("parts", {"I": [1, 1, 1, "1"]}, "parts.I[3]: '1' where a number belongs"),
        ("parts", {"I": [1, 1, 1, -1]}, "a part of I is -1.0"),
        ("sizes", [1, "1"], "sizes[1]: '1'"),
        ("overhead", -1, "overhead is -1.0; it must be a number, not negative"),
        ("stages.0.backward", 2, "stages: backward stands in all stages or in none"),
        ("measurement", {}, "measurement: date is missing"),
        ("measurement", {"date": 1}, "measurement.date: 1 where a text belongs"),
        (
            "measurement",
            {"date": "", "spread": {"forward": [0.1]}},
            "measurement.spread.forward: 1 items where 2 belong",
        ),
        (
            "measurement",
            {"date": "", "hops": [[1, 2, 3]]},
            "measurement.hops[0]: 3 items where 2 belong",
        ),
        (
            "measurement",
            {"date": "", "model": {"layers": "8"}},
            "measurement.model.layers: '8' where a number belongs",
        ),
        ("barrier", 1, "barrier: 1"),
        ("capacity", -1, "capacity is -1.0"),
        ("provenance", [], "provenance: a list where an object belongs"),
        (
            "provenance",
            {"forwards": []},
            "provenance: 'forwards' is not a key here; known are forward",
        ),
        ("provenance", {"forward": "derived"}, "provenance.forward: 'derived' where a list"),
        ("provenance", {"forward": ["derived"]}, "provenance.forward: 1 items where 2 belong"),
        ("provenance", {"host": ["derived", 1]}, "provenance.host[1]: 1 where a text belongs"),
        (
            "provenance",
            {"update": ["derived", "guessed"]},
            "provenance.update[1]: 'guessed' where one of given, measured, interpolated, derived",
        ),
    ],
)
def test_what_no_cost_holds_is_refused_by_path(path: str, value: object, reason: str) -> None:
    assert reason in refusal_of(changed(COST, path, value)).reason


def test_a_number_beyond_all_floats_is_refused() -> None:
    text = json.dumps(COST).replace('"forward": 2', '"forward": 1e999')
    assert "stages[1].forward: Infinity where a finite number belongs" in str(refusal_of(text))


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("start", ..., "start is missing"),
        ("start", [0.0], "start: 1 items where 8 belong"),
        ("start.2", "0", "start[2]: '0' where a number belongs"),
        ("end.2", -1, "end: action 2 ends before it starts"),
        ("measured", 1, "measured: 1"),
        ("program.microbatches", 0, "program.microbatches: 0"),
        ("program.columns.stage.0", 9, "program.lanes[0]: 9F0, action 0"),
        ("cost.format", "weft.program", "cost.format: 'weft.program' where \"weft.cost\" belongs"),
        ("cost.message", [], "cost: the cost describes 0 edges"),
    ],
)
def test_what_no_timeline_holds_is_refused_by_path(path: str, value: object, reason: str) -> None:
    assert reason in refusal_of(changed(TIMELINE, path, value)).reason


@pytest.mark.parametrize(
    ("document", "path", "value", "reason"),
    [
        (MODEL, "version", 2, "version: 2"),
        (MODEL, "layers", ..., "model: the key 'layers' is missing"),
        (MODEL, "layer", 3, "model: unknown key 'layer'; did you mean 'layers'?"),
        (MODEL, "layers", 0, "layers is 0; it must be a whole number from 1"),
        (MODEL, "layers", 61.0, "layers is 61.0"),
        (MODEL, "layers", "\x1b[2J", "layers is '\\x1b[2J'"),
        (MODEL, "layers", "9" * 99, "layers is '999999999999999999999999999999999999...;"),
        (
            MODEL,
            "layers",
            10**400,
            "layers: 1000000000000000000000000000000000000... where a finite",
        ),
        (MODEL, "gated", 1, "gated is 1; it must be true or false"),
        (MODEL, "top_k", 999, "top_k is 999; a token goes to 1 to 256 experts"),
        (MODEL, "source", "\ud800", "source: '\\ud800' where a text belongs"),
        (MODEL, "hidden", [[[1]]], "hidden[0][0]: a list where a plain value belongs"),
        (DEVICE, "peak", ..., "device: the key 'peak' is missing"),
        (DEVICE, "peak", -1, "peak is -1"),
        (DEVICE, "memory", None, "memory is None"),
        (DEVICE, "bandwidth", 10**400, "where a finite number belongs"),
        (DEVICE, "near", 3, "near is 3; it must be keys and values"),
        (DEVICE, "near.bandwith", 1, "near: unknown key 'bandwith'; did you mean 'bandwidth'?"),
        (DEVICE, "near.latency", "fast", "latency of link near is 'fast'"),
        (DEVICE, "matmul", {}, "matmul is {}; it must be a list of points"),
        (DEVICE, "matmul.1.fraction", 2, "matmul, point 1: fraction is 2; 1 is the peak"),
        (DEVICE, "matmul.1.flops", [], "matmul[1].flops: a list where a plain value belongs"),
        (DEVICE, "matmul.0", ["x"], "matmul, point 0 is ['x']"),
        (DEVICE, "matmul.1.flops", 1, "matmul: points stand in order of their flops"),
    ],
)
def test_what_no_model_or_device_holds_is_refused(
    document: dict[str, Any], path: str, value: object, reason: str
) -> None:
    assert reason in refusal_of(changed(document, path, value)).reason


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
@pytest.mark.parametrize("key", ["peak", "memory"])
def test_a_device_has_finite_numbers(key: str, number: str) -> None:
    text = json.dumps({**DEVICE, key: "here"}).replace('"here"', number)
    assert "number" in refusal_of(text).reason


def test_half_a_model_is_refused_by_its_line() -> None:
    text = to_json(MODELS["kimi-k2"])
    assert refusal_of(text[: len(text) // 2]).line == text.count("\n", 0, len(text) // 2) + 1

"""The planner's questions on the live page: own files, clusters, layouts, and what does not fit."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from weft.cost import (
    DEVICES,
    Cluster,
    Derivation,
    Layout,
    Storage,
    Transformer,
    derive,
    model_named,
)
from weft.errors import InputError, WeftError
from weft.ir.kinds import Kind
from weft.lower import recompute
from weft.notation import to_json
from weft.schedules import one_f_one_b
from weft.simulate import simulate
from weft.web.answers import ANSWERS
from weft.web.requests import read_costs, read_request

PROGRAM = one_f_one_b(devices=4, microbatches=8)
SHAPE = {"schedule": "1f1b", "devices": 4, "microbatches": 8, "stages_per_device": 1}
MODEL = {**SHAPE, "model": "gpt-6.2b", "device": "a100"}
LARGE = {**SHAPE, "model": "gpt-28.3b", "device": "a100"}  # too large for four devices
CONFIG = {
    "model_type": "llama", "_name_or_path": "lab/llama-8b", "hidden_size": 4096,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
}  # fmt: skip
LLAMA = Transformer(
    layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocabulary=128256, sequence=4096
)


def shown(**asked: object) -> Any:
    answer: Any = ANSWERS["/timelines"]({"requests": [asked]})["answers"]
    return answer[0]["timeline"]


def described(name: str, text: str) -> Any:
    return ANSWERS["/open"]({"name": name, "text": text})["described"]


def base_of(asked: Mapping[str, object]) -> Derivation:
    base = read_request(asked).costs.base
    assert isinstance(base, Derivation)
    return base


# own files


def test_a_config_of_hugging_face_is_what_the_page_computes_with() -> None:
    found = described("config.json", json.dumps(CONFIG))
    assert (found["kind"], found["name"]) == ("model", "llama-8b")
    assert found["summary"] == "8.03 B parameters, 32 layers, sequences of 4096 tokens"
    expected = simulate(PROGRAM, derive(PROGRAM, LLAMA, DEVICES["h100"]))
    page = shown(**SHAPE, model=found["fields"], device="h100")
    assert page["makespan"] == expected.makespan
    assert page["memory"]["peaks"] == expected.memory.peaks


def test_a_cluster_file_brings_its_devices_and_how_many_there_are() -> None:
    cluster = Cluster(devices=32, device=DEVICES["h100"], name="lab")
    found = described("x.json", to_json(cluster))
    assert (found["kind"], found["name"], found["devices"]) == ("cluster", "lab", 32)
    asked = {**MODEL, "device": found["fields"], "cluster": found["devices"]}
    assert base_of(asked).device == DEVICES["h100"]
    assert base_of(asked).layout == Layout(replicas=8)


def test_a_device_file_and_a_model_of_weft() -> None:
    found = described("mine.json", to_json(DEVICES["a100"]))
    assert (found["kind"], found["name"]) == ("device", "mine")
    assert found["summary"] == "312 TFLOP/s and 74.51 GiB"
    own = described("small.json", to_json(model_named("gpt-cpu")))
    asked = {**SHAPE, "model": own["fields"], "device": found["fields"]}
    assert read_costs(asked) == read_costs({**SHAPE, "model": "gpt-cpu", "device": "a100"})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"layers": 4}, "the key 'hidden' is missing"),
        ({**CONFIG}, "model: unknown key 'model_type'"),
        ({"layers": 10**4, "hidden": 8, "heads": 1, "ffn": 8, "vocabulary": 9, "sequence": 1},
         "10,000 layers; the page takes models of up to 4,096"),
    ],
)  # fmt: skip
def test_a_model_that_makes_no_sense_is_refused(fields: object, reason: str) -> None:
    with pytest.raises(InputError, match=re.escape(reason)):
        read_costs({"model": fields, "device": "a100"})


def test_a_cost_is_no_file_for_the_page() -> None:
    cost = to_json(derive(PROGRAM, LLAMA, DEVICES["h100"]))
    with pytest.raises(InputError, match=r"cost\.json: a cost\. The page takes programs"):
        ANSWERS["/open"]({"name": "cost.json", "text": cost})


# layouts


def test_the_sequence_of_a_model() -> None:
    assert base_of({**MODEL, "sequence": 512}).model.tokens == 3 * 512
    assert base_of({**MODEL, "sequence": 0}).model.tokens == 3 * 1024


def test_tensor_parallelism_divides_what_a_device_keeps() -> None:
    whole, half = shown(**MODEL), shown(**MODEL, tensor_parallel=2)
    assert max(half["memory"]["peaks"]) == pytest.approx(
        max(whole["memory"]["peaks"]) / 2, rel=0.02
    )


@pytest.mark.parametrize(("asked", "copies"), [({}, 8), ({"data_parallel": 3}, 3)])
def test_a_cluster_is_filled_with_copies(asked: dict[str, int], copies: int) -> None:
    layout = base_of({**MODEL, "cluster": 64, "tensor_parallel": 2, **asked}).layout
    assert layout == Layout(tensor=2, replicas=copies)


def test_layers_by_their_time_shorten_the_longest_stage() -> None:
    asked = {**SHAPE, "model": LLAMA.to_mapping(), "device": "h100"}
    even, fair = shown(**asked), shown(**asked, is_balanced=True)
    longest = [max(one["work"] for one in page["idle"]["sums"]) for page in (even, fair)]
    assert longest[1] < 0.95 * longest[0]
    assert fair["makespan"] < even["makespan"]
    of_two = shown(**{**asked, "schedule": "zbv", "stages_per_device": 2}, is_balanced=True)
    assert of_two["makespan"] < fair["makespan"]


def test_more_than_a_cluster_has_is_refused_in_words() -> None:
    words = "4 of the pipeline x 8 of tensor parallelism x 2 copies are 64 devices, and the cluster"
    with pytest.raises(InputError, match=f"{words} has 32: take fewer"):
        read_request({**MODEL, "cluster": 32, "tensor_parallel": 8, "data_parallel": 2})


def test_copies_sum_their_gradients_within_the_step() -> None:
    alone, copied = read_request(MODEL), read_request({**MODEL, "data_parallel": 2})
    kinds = set(copied.timeline().program.actions.kind.tolist())
    assert {Kind.REDUCE, Kind.UPDATE} <= kinds
    assert copied.timeline().makespan > alone.timeline().makespan
    ended = read_request({**MODEL, "ends_with_update": True}).timeline()
    assert Kind.UPDATE in set(ended.program.actions.kind.tolist())


def test_a_dropped_program_ends_as_the_schedules_do() -> None:
    question = {"name": "x.json", "text": to_json(PROGRAM), "costs": {**MODEL, "data_parallel": 2}}
    answer: Any = ANSWERS["/open"](question)["timelines"]
    assert answer[0]["makespan"] == shown(**MODEL, data_parallel=2)["makespan"]


def test_speed_is_of_all_devices() -> None:
    figures = {one["name"]: one["value"] for one in shown(**MODEL, data_parallel=2)["figures"]}
    assert figures["devices in all"] == 8
    assert 0.2 < figures["MFU"] < 1


# memory


def test_some_stages_are_computed_again() -> None:
    page = shown(**MODEL, relief="--recompute 0,2")
    program = recompute(PROGRAM, stages=[0, 2])
    cost = derive(program, model_named("gpt-6.2b"), DEVICES["a100"])
    assert page["makespan"] == simulate(program, cost).makespan
    assert page["name"] == "1f1b --recompute 0,2"


def test_norms_are_computed_again() -> None:
    page = shown(**MODEL, relief="--recompute selective")
    storage = Storage(is_selective=True)
    cost = derive(PROGRAM, model_named("gpt-6.2b"), DEVICES["a100"], storage=storage)
    assert page["memory"]["peaks"] == simulate(PROGRAM, cost).memory.peaks
    assert page["name"] == "1f1b --recompute selective"


@pytest.mark.parametrize(
    ("relief", "reason"),
    [
        ("--recompute selective", "needs --model and --device"),
        ("--recompute 7", "stages are numbered 0 to 3"),
        ("--recompute all --recompute all", "relief is one of"),
        ("--recompute", "relief is one of"),
    ],
)
def test_a_relief_that_makes_no_sense_is_refused(relief: str, reason: str) -> None:
    with pytest.raises(WeftError, match=reason):
        read_request({**SHAPE, "relief": relief}).timeline()


def test_what_does_not_fit_says_which_device_and_by_how_much() -> None:
    words = shown(**LARGE)["shortage"]
    assert words.startswith("Device 1 needs 130.5 GiB and has 74.51 GiB: 55.99 GiB too much.")
    assert "3 other devices also need more than they have." in words
    assert "gradients and optimizer state alone are 121.5 GiB" in words
    assert shown(**MODEL)["shortage"] == shown(**SHAPE)["shortage"] == ""


@pytest.mark.parametrize(
    "asked", [LARGE, {**LARGE, "model": "gpt-145.6b"}, {**SHAPE, "capacity": 3.5}]
)
def test_what_is_said_to_help_does(asked: dict[str, object]) -> None:
    answer: Any = ANSWERS["/fit"]({"request": asked})
    assert answer["ways"]
    for way in answer["ways"]:
        assert shown(**{**asked, **way["change"]})["shortage"] == ""


def test_where_nothing_helps_the_nearest_is_named() -> None:
    answer = ANSWERS["/fit"]({"request": {**LARGE, "model": "gpt-145.6b", "cluster": 8}})
    assert answer["ways"] == []
    assert str(answer["nearest"]).startswith("tensor parallelism of 2 and --recompute all: ")


def test_the_frontier_sets_stale_weights_apart() -> None:
    def points(schedule: str) -> Any:
        return ANSWERS["/plot"]({"request": {**MODEL, "schedule": schedule, "data_parallel": 2}})

    assert not points("1f1b")["points"][0]["is_stale"]
    stale = points("pipedream")["points"][0]
    assert stale["is_stale"]
    assert stale["words"] == "without sums over copies"


def test_what_makes_a_schedule_fit_is_a_point_of_its_own() -> None:
    answer: Any = ANSWERS["/plot"]({"request": {**MODEL, "capacity": 36 * 2**30}})
    found = {point["relief"]: point["is_fitting"] for point in answer["points"]}
    assert found == {"": False, "--recompute selective": True, "--recompute all": True}


# synthesised orders


def synthesised(asked: dict[str, object], index: int) -> Any:
    return ANSWERS["/synthesis"]({"request": asked, "index": index})


def test_a_line_of_orders_for_less_and_less_memory() -> None:
    """Proved optima of a V on four devices, 8 microbatches, each device's share taking 3."""
    found = [synthesised(SHAPE, index)["points"][0] for index in (1, 2)]
    assert [(point["memory"], point["time"]) for point in found] == [(5, 25.5), (4, 26.5)]
    assert all(point["words"].startswith("proved to be the best order") for point in found)


def test_a_synthesised_point_opens_as_it_lies() -> None:
    asked = {**MODEL, "data_parallel": 2}
    found = synthesised(asked, 1)["points"][0]
    question = {"name": found["name"], "text": found["text"], "costs": asked}
    opened: Any = ANSWERS["/open"](question)["timelines"]
    assert opened[0]["name"] == found["name"]
    assert opened[0]["makespan"] == found["time"]
    assert max(opened[0]["memory"]["peaks"]) == found["memory"]


def test_where_nothing_is_synthesised_it_says_why() -> None:
    with pytest.raises(InputError, match="the page synthesises up to 4,000"):
        synthesised({**SHAPE, "devices": 64, "microbatches": 512}, 0)
    with pytest.raises(InputError, match="no order fits into the memory of a device"):
        synthesised({**LARGE, "model": "gpt-145.6b"}, 0)
    with pytest.raises(InputError, match="budgets, from 0"):
        synthesised(SHAPE, 50)


def test_stages_that_keep_unequal_amounts_get_an_order() -> None:
    """The head of a model keeps far more than the rest; a device that has it must not get stuck."""
    model = replace(LLAMA, sequence=8192).to_mapping()
    asked = {**SHAPE, "devices": 8, "microbatches": 16, "model": model, "device": "h100"}
    found = synthesised(asked, 1)["points"][0]
    assert "2 stages on a device" in found["words"]

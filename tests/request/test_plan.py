"""Plans: what a step comes to, and files that read back to the same plan or say what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from weft.cost import DEVICES, MODELS, Layout, Storage
from weft.errors import InputError, NotationError
from weft.ir.kinds import Kind
from weft.lower import replicated, updates
from weft.request import Passes, Plan, plan_from_json, plan_to_json, read_plan
from weft.schedules import one_f_one_b, zbv
from weft.simulate import simulate

SMALL = replace(MODELS["gpt-6.2b"], layers=10)


def made(**changes: Any) -> Plan:
    plan = Plan(
        program=zbv(devices=2, microbatches=4),
        layout=Layout(layers=(2, 3, 3, 2), replicas=2),
        model=SMALL,
        device=DEVICES["a100"],
        storage=Storage(optimizer=8),
        passes=Passes(recompute="0,1"),
        source="zbv, by hand",
    )
    return replace(plan, **changes)


def measured() -> Plan:
    plan = made()
    cost = plan.costs.of(plan.program)
    return replace(plan, cost=cost, model=None, device=None)


@pytest.mark.parametrize("plan", [made(), measured()], ids=["derived", "measured"])
def test_a_plan_reads_back_as_it_was_written(plan: Plan, tmp_path: Path) -> None:
    plan = replace(plan, predicted=plan.prediction("the bubble"))
    path = tmp_path / "plan.json"
    path.write_text(plan_to_json(plan))
    assert read_plan(path) == plan


def test_a_step_has_its_sums_and_updates() -> None:
    plan = made()
    kinds = plan.timeline.program.actions.kind
    assert {Kind.REDUCE, Kind.UPDATE, Kind.R} <= {Kind(int(kind)) for kind in kinds}
    alone = made(layout=Layout(layers=(2, 3, 3, 2)))
    assert Kind.REDUCE not in alone.timeline.program.actions.kind


def test_sums_that_a_program_does_not_show_take_as_long_as_those_of_replicas() -> None:
    plan = made(
        program=one_f_one_b(devices=2, microbatches=4),
        layout=Layout(layers=(5, 5), replicas=2),
        passes=Passes(),
    )
    shown = updates(replicated(plan.program, 2), is_sharded=True)
    step = simulate(shown, plan.costs.of(plan.program))
    assert plan.prediction().seconds == pytest.approx(step.makespan)


def test_the_prediction_has_the_figures_of_the_timeline() -> None:
    plan = made()
    found = plan.prediction("memory")
    assert found.seconds == plan.timeline.makespan
    assert found.memory == tuple(plan.timeline.memory.peaks)
    assert found.tokens_per_second == pytest.approx(2 * 4 * SMALL.tokens / found.seconds)
    assert found.capacity == DEVICES["a100"].memory
    assert found.is_fitting == (max(found.memory) <= found.capacity)


Change = Callable[[dict[str, Any]], None]


def _set(*keys: str, to: object) -> Change:
    def change(document: dict[str, Any]) -> None:
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = to

    return change


WRONG: dict[str, tuple[Change, str]] = {
    "version": (_set("version", to=2), "version: 2 where 1"),
    "unknown key": (_set("extra", to=1), "'extra' is not a key here"),
    "layers": (_set("layout", "layers", to=[5, 5]), "layers: 2 counts, but zbv has 4 stages"),
    "sum": (_set("layout", "layers", to=[2, 3, 3, 3]), "layers: 11 in all, but the model has 10"),
    "no list": (_set("layout", "layers", to=3), "layout.layers: 3 where a list belongs"),
    "kind": (_set("layout", "replicas", to="two"), "layout: replicas is 'two'"),
    "typo": (_set("layout", "replica", to=2), "did you mean 'replicas'?"),
    "device": (_set("device", to=None), "there is no device; a plan has a model and a device"),
    "stages": (_set("passes", "recompute", to="0,9"), "stages are numbered 0 to 3"),
    "steps": (_set("passes", "steps", to=3), "a plan has recompute and offload, not steps"),
    "lane": (_set("program", "lanes", to=[]), "program"),
    "model": (_set("model", "hidden", to=-1), "model: hidden is -1"),
    "source": (_set("source", to=3), "source: 3 where a text belongs"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named_with_its_key(name: str) -> None:
    change, words = WRONG[name]
    document = json.loads(plan_to_json(made()))
    change(document)
    with pytest.raises(NotationError) as caught:
        plan_from_json(json.dumps(document), "my.plan")
    assert str(caught.value).startswith("my.plan")
    assert words in str(caught.value)


def test_what_is_no_json_is_named_with_its_line() -> None:
    with pytest.raises(NotationError, match=r"my\.plan, line 3"):
        plan_from_json('{"format": "weft.plan",\n"version": 1,\n"layout": }', "my.plan")


def test_a_plan_needs_layers_for_each_stage() -> None:
    with pytest.raises(InputError, match="0 counts, but zbv has 4 stages"):
        made(layout=Layout())

"""`weft train --plan`: what was planned is what runs, and what contradicts it is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import refused, weft
from tests.cli.test_plan_file import written
from tests.runtime.test_planned import PLANS, SIZES, TWO, WAVE, plan_of
from weft.cli.jobs import Job, settings_of
from weft.cost import Layout, Measurement, Storage, Transformer
from weft.ir.kinds import Kind
from weft.request import Passes, Plan, Sizes, Source, Training, read_plan
from weft.runtime.stage.storage.marks import marked
from weft.train.workload import Workload

STEPS = ["--steps", "2", "--seed", "5"]


def test_a_planned_run_has_the_losses_of_the_reference_and_names_its_plan(tmp_path: Path) -> None:
    plan = plan_of(WAVE, 2, 1, 1, 1, passes=Passes(recompute="0"), source="by hand")
    words = ["train", "--plan", written(tmp_path, plan), *STEPS]
    shown = weft(*words, "--out", str(tmp_path / "run"))
    assert shown.exit_code == 0, shown.stderr
    found = json.loads((tmp_path / "run" / "summary.json").read_text())
    losses = json.dumps({"losses": found["losses"]})
    assert losses == weft(*words, "--json", "--reference").stdout.strip()
    assert found["plan"]["layers"] == [2, 1, 1, 1]
    assert found["plan"]["predicted_step"] == plan.prediction().seconds
    assert read_plan(tmp_path / "run" / "plan.json") == plan
    again = ["train", "--config", str(tmp_path / "run" / "settings.toml"), "--json", "--reference"]
    assert weft(*again).stdout.strip() == losses
    rows = [line.split("  ")[0] for line in shown.stdout.splitlines()]
    assert {"step, ms", "bubble wall", "memory of device 1, KiB"} <= {*rows}
    _is_planned_again(tmp_path / "run")


def _is_planned_again(run: Path) -> None:
    """From what its stages took, for the same model, as a plan that can be run."""
    again = str(run.parent / "again.json")
    found = weft("plan", "--from-run", str(run), "--schedule", "1f1b", "-o", again)
    assert found.exit_code == 0, found.stderr
    plan = read_plan(again)
    assert (plan.model, sum(plan.layers)) == (None, SIZES.layers)
    settings = settings_of(Job("1f1b", Sizes(), Training(), Source(), plan=Path(again)))
    assert (settings.hidden, settings.context) == (SIZES.hidden, SIZES.sequence)


def job_of(folder: Path, plan: Plan, **changes: Any) -> Job:
    training = Training(**changes)
    return Job("1f1b", Sizes(), training, Source(), plan=Path(written(folder, plan)))


def test_a_plan_decides_about_program_sizes_and_layout(tmp_path: Path) -> None:
    plan = replace(PLANS["replicas"], passes=Passes(recompute="0", offload="0.5"))
    settings = settings_of(job_of(tmp_path, plan))
    assert (settings.program.devices, settings.program.microbatches) == (4, 8)
    assert Kind.R in settings.program.actions.kind
    assert (settings.offload, settings.shard_optimizer) == (0.5, True)
    found = (settings.layers, settings.hidden, settings.heads, settings.context)
    assert found == (SIZES.layers, SIZES.hidden, SIZES.heads, SIZES.sequence)
    assert settings.microbatch_size == SIZES.microbatch


def test_experts_have_the_sizes_of_the_plan_and_are_marked(tmp_path: Path) -> None:
    experts = {"experts": 4, "top_k": 2, "expert_ffn": 8, "gated": True}
    model = Transformer.from_mapping({**SIZES.to_mapping(), **experts})
    plan = Plan(
        program=TWO,
        layout=Layout(layers=(2, 3), experts=2),
        model=model,
        device=PLANS["uneven"].device,
        storage=Storage(is_selective=True),
    )
    settings = settings_of(job_of(tmp_path, plan))
    assert settings.expert_ranks == 2
    assert settings.mixture == model
    alone = replace(settings, program=TWO)
    assert all(marked(stage) for stage in Workload(alone).stages)


def test_a_plan_of_measured_stages_has_the_sizes_that_were_measured(tmp_path: Path) -> None:
    sizes = {"layers": 5.0, "hidden": 16.0, "heads": 2.0, "context": 8.0, "microbatch_size": 3.0}
    cost = replace(
        PLANS["uneven"].costs.of(TWO), measurement=Measurement(date="2026-11-16", model=sizes)
    )
    plan = Plan(program=TWO, layout=Layout(layers=(2, 3)), cost=cost)
    settings = settings_of(job_of(tmp_path, plan))
    assert (settings.hidden, settings.context, settings.microbatch_size) == (16, 8, 3)


TENSOR = plan_of(TWO, 2, 3, layout={"tensor": 2})
EXPERTS = replace(TENSOR, model=replace(SIZES, experts=4, top_k=2, expert_ffn=8))
SHARING = plan_of(TWO, 2, 3, layout={"tensor": 2, "replicas": 2})


@pytest.mark.parametrize(
    ("plan", "words", "said"),
    [
        (PLANS["uneven"], ["-d", "2"], "says that already; leave out --devices"),
        (PLANS["uneven"], ["--schedule", "zbv"], "leave out --schedule"),
        (PLANS["uneven"], ["--hidden", "32", "--offload", "all"], "--hidden and --offload"),
        (PLANS["uneven"], ["--replicas", "2"], "leave out --replicas"),
        (PLANS["uneven"], ["--model", "gpt-6.2b"], "is for a model with layers 5"),
        (TENSOR, ["--model", "config.json"], "of its own GPT alone, not of config.json; plan with"),
        (EXPERTS, [], "tensor parallel 2, and `weft train` shares layers of its own GPT alone"),
        (SHARING, [], "ranks that share layers keep theirs; plan with --optimizer whole"),
    ],
)
def test_what_a_plan_contradicts_is_refused(
    plan: Plan, words: list[str], said: str, tmp_path: Path
) -> None:
    refused(weft("train", "--plan", written(tmp_path, plan), *words), said)

"""Measured runs: their stages as a cost to plan with, by what the step of the run took."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.request.test_plan import made
from weft.cost import Layout, Measurement
from weft.errors import InputError
from weft.ir.program import Program
from weft.lower import executable, recompute, replicated
from weft.notation import to_json
from weft.plan import Choices, search
from weft.plan.asked import Wish
from weft.request import MeasuredRun, Plan, measured_of, plan_from_json, plan_to_json
from weft.schedules import one_f_one_b, zbv
from weft.simulate import simulate
from weft.timeline import Timeline

MODEL = {"layers": 10.0, "hidden": 64.0}


def timed(program: Program) -> Timeline:
    """As a rank would measure it: every action takes 1.5 times as long as was profiled."""
    plan = made()
    cost = plan.costs.of(plan.program)
    first = replace(cost.times, update=(0.1,) * 4, backward=(3.0, 4.0, 5.0, 6.0))
    measurement = Measurement(date="2026-11-16", model=MODEL, spread={"forward": (0.1,) * 4})
    cost = replace(cost, times=first, measurement=measurement)
    predicted = simulate(executable(program), cost)
    return replace(predicted, start=1.5 * predicted.start, end=1.5 * predicted.end)


def run_of(folder: Path, program: Program) -> Path:
    (folder / "measured.json").write_text(to_json(timed(program)))
    (folder / "settings.toml").write_text('layers = 10\nreplicas = 2\nschedule = "zbv"\n')
    return folder


def test_seconds_are_those_of_the_step(tmp_path: Path) -> None:
    known = timed(zbv(devices=2, microbatches=4)).cost.times
    found = measured_of(run_of(tmp_path, zbv(devices=2, microbatches=4)))
    for name in ("forward", "input_grad", "weight_grad", "update", "recompute"):
        assert getattr(found.cost.times, name) == pytest.approx(
            1.5 * np.array(getattr(known, name))
        )
    assert found.cost.times.backward == known.backward  # of which none ran
    assert found.cost.times.reduce == known.reduce
    assert found.layout == Layout(layers=(3, 3, 2, 2), replicas=2, is_sharded=False)
    assert found.seconds == pytest.approx(timed(zbv(devices=2, microbatches=4)).makespan)


def test_gradients_go_with_the_whole_backward(tmp_path: Path) -> None:
    program = recompute(one_f_one_b(devices=4, microbatches=4), stages=[0])
    found, known = measured_of(run_of(tmp_path, program)).cost.times, timed(program).cost.times
    assert found.backward == pytest.approx(1.5 * np.array(known.backward))
    assert found.input_grad == pytest.approx(1.5 * np.array(known.input_grad))
    assert found.recompute == pytest.approx(1.5 * np.array(known.recompute))


def test_a_plan_of_it_is_simulated_as_it_ran_and_is_a_file(tmp_path: Path) -> None:
    """With its two replicas, that the program of the plan does not show."""
    one = one_f_one_b(devices=4, microbatches=4)
    run = measured_of(run_of(tmp_path, replicated(one, 2)))
    plan = planned(run, one)
    assert plan_from_json(plan_to_json(plan)) == plan
    again = simulate(run.program, run.cost)
    assert plan.prediction().seconds == pytest.approx(again.makespan, rel=1e-2)


def test_a_run_with_a_stage_for_each_end_is_planned_again(tmp_path: Path) -> None:
    run = run_of(tmp_path, one_f_one_b(devices=4, microbatches=4))
    (run / "settings.toml").write_text("layers = 2\n")
    assert measured_of(run).layout.layers == (0, 1, 1, 0)
    asked = Wish(from_run=run).question(None, Choices(schedule=("1f1b",), pipeline=4))
    best = search(asked).proposals[0]
    assert best.plan.layers == (0, 1, 1, 0)
    assert best.plan.prediction().seconds == pytest.approx(best.predicted.seconds)


def planned(run: MeasuredRun, program: Program) -> Plan:
    return Plan(program=program, layout=run.layout, cost=run.cost)


def test_a_planned_run_says_its_layers(tmp_path: Path) -> None:
    plan = made()
    run = run_of(tmp_path, plan.program)
    (run / "plan.json").write_text(plan_to_json(plan))
    assert measured_of(run).layout == plan.layout


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name the folder of a run of `weft train`"):
        measured_of(tmp_path)
    run = run_of(tmp_path, zbv(devices=2, microbatches=4))
    (run / "settings.toml").write_text("layers = 3\n")
    with pytest.raises(InputError, match="3 layers on 4 stages"):
        measured_of(run)
    (run / "settings.toml").write_text("layers =\n")
    with pytest.raises(InputError, match=r"settings\.toml, line 1: 'layers =' is not TOML"):
        measured_of(run)

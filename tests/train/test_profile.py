"""Profiles of a job: refused for another model, doubted on another machine, warned of noise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.cost import Cost, Measurement, Share
from weft.errors import InputError
from weft.schedules import interleaved_1f1b, one_f_one_b
from weft.train import Settings, check_cost, doubts, measured, noise, own_text, trained

PROGRAM = one_f_one_b(devices=2, microbatches=4)
SETTINGS = Settings(
    PROGRAM, own_text(), steps=1, hidden=16, heads=2, context=8, microbatch_size=2, layers=2
)


@pytest.fixture(scope="module")
def cost() -> Cost:
    return measured(SETTINGS, lambda what, share: None)


def measurement(cost: Cost) -> Measurement:
    assert cost.measurement is not None
    return cost.measurement


def test_a_profile_fits_its_own_job(cost: Cost) -> None:
    check_cost(SETTINGS, cost)
    check_cost(replace(SETTINGS, steps=99, learning_rate=1e-4, seed=7), cost)
    assert measurement(cost).model["hidden"] == 16


def test_a_run_predicts_with_the_cost_that_it_is_given(cost: Cost) -> None:
    outcome = trained(SETTINGS, cost=cost)
    assert outcome.predicted.cost == outcome.measured.cost == cost


def test_a_run_measures_itself_otherwise() -> None:
    found = measurement(trained(SETTINGS).predicted.cost)
    assert found.model == SETTINGS.sizes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden": 32}, "measured with hidden 16 instead of 32; run `weft profile`"),
        ({"layers": 4, "context": 9}, "layers 2 instead of 4, context 8 instead of 9"),
        ({"dropout": 0.5}, "dropout 0 instead of 0.5"),
        (
            {"program": interleaved_1f1b(devices=2, microbatches=4, stages_per_device=2)},
            "stages 2 instead of 4",
        ),
    ],
)
def test_the_cost_of_another_model_is_refused(
    changes: dict[str, object], said: str, cost: Cost
) -> None:
    with pytest.raises(InputError, match=said):
        check_cost(replace(SETTINGS, **changes), cost)  # type: ignore[arg-type]


def test_the_cost_of_a_mixture_is_refused_for_a_model_without_experts_and_the_other_way(
    cost: Cost,
) -> None:
    known = measurement(cost)
    mixture = replace(known, model={**known.model, "experts": 8})
    with pytest.raises(InputError, match="measured with experts 8 instead of 0"):
        check_cost(SETTINGS, replace(cost, measurement=mixture))
    sized = {"layers": 8, "hidden": 64, "heads": 4, "context": 64, "microbatch_size": 4}
    moe = replace(SETTINGS, model="moe-small", **sized)  # type: ignore[arg-type]
    alike = replace(known, model={**known.model, **sized})
    with pytest.raises(InputError, match="measured with experts 0 instead of 8"):
        check_cost(moe, replace(cost, measurement=alike))


def test_a_cost_by_hand_fits_any_model_of_that_many_stages() -> None:
    check_cost(SETTINGS, Share().cost(PROGRAM))
    with pytest.raises(InputError, match="describes 3 stages, 1f1b has 2"):
        check_cost(SETTINGS, Share().cost(one_f_one_b(devices=3, microbatches=4)))


def test_other_machines_and_numbers_of_ranks_are_doubted(cost: Cost) -> None:
    here = replace(measurement(cost), ranks=2)
    assert not list(doubts(SETTINGS, replace(cost, measurement=here)))
    assert not list(doubts(SETTINGS, replace(cost, measurement=None)))
    there = replace(here, machine={**here.machine, "torch": "1.0"}, ranks=4)
    machine, ranks = doubts(SETTINGS, replace(cost, measurement=there))
    assert "another machine, with torch 1.0 instead of" in machine
    assert ranks.endswith("measured with 4 processes at work, this run has 2")


def test_the_cost_of_a_gpu_is_doubted_on_a_cpu(cost: Cost) -> None:
    found = replace(measurement(cost), ranks=2)
    there = replace(found, machine={**found.machine, "device": "NVIDIA H200"})
    (said,) = doubts(SETTINGS, replace(cost, measurement=there))
    assert said.endswith("on another machine, with device NVIDIA H200 instead of CPU")


def test_times_that_vary_are_reported() -> None:
    still = Measurement("", machine={"cores": "4"}, ranks=4, spread={"forward": (0.01, 0.05)})
    assert noise(still) is None
    wild = replace(still, spread={"forward": (0.01, 0.06), "update": (0.5, 0.0)})
    assert noise(wild) == (
        "2 of 4 times vary by more than 5% (interquartile range over median), most of all update"
        " of stage 0 by 50%: others were busy"
    )
    assert str(noise(replace(wild, ranks=8))).endswith("8 processes share 4 cores")

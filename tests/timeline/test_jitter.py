"""Jitter: steps whose durations vary, against what probability says of them."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log1p, pi, sqrt

import numpy as np
import pytest

from weft.cost import Cost, Measurement, Share
from weft.cost.measurement import Average
from weft.errors import InputError
from weft.ir.graph import Graph
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.jitter import QUARTILE, Jittered, Variation, jittered
from weft.schedules import REGISTRY, Schedule, Shape, gpipe, one_f_one_b, pipedream_2bw
from weft.simulate import simulate, steady

VARIED = 0.1


def shaped(schedule: Schedule) -> Program:
    stages = schedule.stages_per_device[0]
    return schedule.program(Shape(devices=4, microbatches=8, stages_per_device=stages))


def costed(program: Program, latency: float = 0.25) -> Cost:
    return Share(latency=latency).cost(program)


def measured(cost: Cost, spread: float, average: Average) -> Cost:
    every = {"forward": (spread,) * cost.stages, "backward": (spread,) * cost.stages}
    return replace(cost, measurement=Measurement(date="", average=average, spread=every))


@pytest.mark.parametrize("schedule", [*REGISTRY], ids=lambda schedule: schedule.name)
def test_without_variation_a_step_is_the_simulated_one(schedule: Schedule) -> None:
    program = shaped(schedule)
    found = jittered(program, costed(program), 0.0, draws=2)
    assert found == pytest.approx(Jittered(1.0, 1.0, 1.0, 2), rel=1e-12)


@pytest.mark.parametrize("schedule", [*REGISTRY], ids=lambda schedule: schedule.name)
def test_each_draw_is_a_simulation(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step whose durations are all twice as long is as long as the simulator says."""
    program = shaped(schedule)
    cost = costed(program, latency=0.0)
    monkeypatch.setattr("weft.jitter._factors", lambda program, *_: twice(program))
    assert jittered(program, cost, 0.5, draws=1).mean == pytest.approx(2.0)


def twice(program: Program) -> np.ndarray:
    return np.full((len(program.first_of_slot), 1), 2.0)


def test_one_device_is_as_fast_on_average_as_without() -> None:
    """Nobody waits: durations of mean one add up."""
    program = one_f_one_b(devices=1, microbatches=64)
    found = jittered(program, costed(program), VARIED)
    assert found.mean == pytest.approx(1.0, abs=3 * VARIED / sqrt(128 * found.draws))
    assert 0.9 < found.low < 1.0 < found.high < 1.1


def test_who_reads_two_towers_waits_for_the_slower() -> None:
    """Of two that vary alike the longer is sigma / sqrt(pi) above the mean, there and back."""
    program = gpipe.program(Shape(devices=3, microbatches=1, graph=Graph.two_tower(1)))
    cost = costed(program, latency=0.0)
    found = jittered(program, cost, VARIED, draws=20_000)
    above = VARIED * (1.0 + 2.0) / sqrt(pi)
    assert simulate(program, cost).makespan == 2 * (1.0 + 2.0)
    assert found.mean == pytest.approx(1 + above / 6, abs=1e-3)


def test_what_has_slack_suffers_less() -> None:
    """1F1B meets its neighbours at every microbatch, and a run-ahead order does not."""
    slower = {
        name: jittered(shaped(REGISTRY[name]), costed(shaped(REGISTRY[name])), VARIED).mean
        for name in ("gpipe", "1f1b", "eager-1f1b")
    }
    assert slower["eager-1f1b"] < slower["1f1b"]
    assert slower["eager-1f1b"] < slower["gpipe"]


def test_it_is_the_same_in_every_call() -> None:
    program = gpipe(devices=4, microbatches=8)
    assert jittered(program, costed(program), VARIED) == jittered(program, costed(program), VARIED)


def test_many_actions_are_drawn_fewer_times(monkeypatch: pytest.MonkeyPatch) -> None:
    program = gpipe(devices=4, microbatches=8)
    monkeypatch.setattr("weft.jitter.MOST_NUMBERS", 10 * len(program))
    assert jittered(program, costed(program), VARIED).draws == 10


def test_of_what_repeats_an_update_counts() -> None:
    program = pipedream_2bw(devices=2, microbatches=8, updates=6)
    cost = costed(program, latency=0.0)
    found = jittered(program, cost, VARIED)
    assert steady(program, cost).bubble == 0.0
    assert 1.0 < found.mean < 1.0 + 2 * VARIED


def test_a_profile_says_how_much_durations_vary() -> None:
    """A log-normal distribution with sigma has quartiles exp(-z sigma) and exp(z sigma)."""
    sigma = sqrt(log1p(VARIED**2))
    spread = exp(QUARTILE * sigma) - exp(-QUARTILE * sigma)
    program = gpipe(devices=4, microbatches=8)
    cost = measured(costed(program), spread, Average.MEAN)
    variation = Variation.measured(cost)
    found = [one for stages in variation.by_kind.values() for one in stages]
    assert found == pytest.approx([VARIED] * len(found))
    assert jittered(program, cost, variation) == pytest.approx(
        jittered(program, cost, VARIED), rel=1e-9
    )


def test_where_a_profile_has_medians_means_are_longer() -> None:
    program = gpipe(devices=1, microbatches=256)
    cost = measured(costed(program), 0.4, Average.MEDIAN)
    (sigma,) = {
        round(sqrt(log1p(one**2)), 9)
        for stages in Variation.measured(cost).by_kind.values()
        for one in stages
    }
    found = jittered(program, cost, Variation.measured(cost)).mean
    assert found == pytest.approx(exp(sigma**2 / 2), rel=0.01)


def test_a_given_cost_does_not_say_how_much_it_varies() -> None:
    program = gpipe(devices=4, microbatches=8)
    with pytest.raises(InputError, match="does not say how much times vary"):
        Variation.measured(costed(program))


@pytest.mark.parametrize("variation", [-0.1, float("nan"), float("inf")])
def test_a_variation_is_a_fraction(variation: float) -> None:
    program = gpipe(devices=4, microbatches=8)
    with pytest.raises(InputError, match="a fraction from 0 up"):
        jittered(program, costed(program), variation)


def test_a_step_of_nothing_is_not_slowed_down() -> None:
    program = gpipe(devices=2, microbatches=2)
    cost = Share(forward=0.0, input_grad=0.0, weight_grad=0.0).cost(program)
    assert simulate(program, cost).makespan == 0.0
    assert jittered(program, cost, VARIED).mean == 1.0


def test_what_a_profile_has_not_timed_varies_as_what_it_is_made_of() -> None:
    """A profile of a program that splits its backwards has no whole ones."""
    program = gpipe(devices=4, microbatches=8)
    spread = {"input_grad": (0.2,) * 4, "weight_grad": (0.2,) * 4, "close": (0.5,) * 4}
    measurement = Measurement(date="", spread=spread)
    found = Variation.measured(replace(costed(program), measurement=measurement)).by_kind
    assert found[Kind.B] == found[Kind.I] == found[Kind.W]
    assert Kind.F not in found

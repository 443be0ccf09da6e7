"""What the live page lets a reader choose of costs."""

from __future__ import annotations

import math

import pytest

from weft.cost import DEVICES, Derivation, derive, model_named, stretched
from weft.errors import InputError
from weft.schedules import one_f_one_b, zbv
from weft.simulate import simulate
from weft.web.requests import read_costs

PROGRAM = one_f_one_b(devices=4, microbatches=8)
MODEL = {"model": "gpt-6.2b", "device": "a100"}


def test_nothing_chosen_is_units() -> None:
    cost = read_costs({}).of(PROGRAM)
    assert simulate(PROGRAM, cost).makespan == simulate(PROGRAM).makespan
    assert cost.network.message == (1.0,) * 3
    assert math.isinf(cost.memory.capacity)


def test_a_model_on_a_device_is_derived() -> None:
    costs = read_costs(MODEL)
    assert isinstance(costs.base, Derivation)
    assert costs.of(PROGRAM) == derive(PROGRAM, model_named("gpt-6.2b"), DEVICES["a100"])


def test_the_microbatch_and_the_experts_of_a_model() -> None:
    twice = read_costs({**MODEL, "microbatch_size": 2}).of(PROGRAM)
    once = read_costs({**MODEL, "microbatch_size": 1}).of(PROGRAM)
    assert twice.memory.saved[0] == 2 * once.memory.saved[0]
    base = read_costs({"model": "deepseek-v3", "device": "h800", "expert_parallel": 8}).base
    assert isinstance(base, Derivation)
    assert base.layout.experts == 8


def test_links_and_memory_beyond_the_device_s() -> None:
    usual = read_costs(MODEL).of(PROGRAM)
    chosen = read_costs({**MODEL, "latency": 1.0, "capacity": 5e9}).of(PROGRAM)
    assert chosen.network.default.latency == 1.0
    assert chosen.network.default.bandwidth == usual.network.default.bandwidth
    assert chosen.memory.capacity == 5e9


@pytest.mark.parametrize("program", [PROGRAM, zbv(devices=4, microbatches=8)])
def test_parts_of_the_model_take_longer(program: object) -> None:
    usual = read_costs({}).of(program)  # type: ignore[arg-type]
    longer = read_costs({"lengths": [1, 1, 3]}).of(program)  # type: ignore[arg-type]
    per_part = usual.stages // 4
    factors = tuple(3.0 if stage // per_part == 2 else 1.0 for stage in range(usual.stages))
    assert longer == stretched(usual, factors)
    assert longer.times.forward[2 * per_part] == 3 * usual.times.forward[2 * per_part]
    assert longer.memory == usual.memory


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([], "costs are an object"),
        ({"model": "gpt-6.2"}, "did you mean 'gpt-6.2b'"),
        ({"model": "gpt-6.2b"}, "no device is named"),
        ({"device": "a100"}, "no model is named"),
        ({"model": "/etc/passwd", "device": "a100"}, "no model is named"),
        (
            {**MODEL, "microbatch_size": 10**9},
            "microbatch size: 1000000000 is not a whole number from 1 to",
        ),
        ({"lengths": [1] * 9999}, "lengths: .* is not a list of at most 256 numbers"),
        ({"lengths": {}}, "lengths: .* is not a list of at most 256 numbers"),
        ({"lengths": [float("nan")]}, "lengths: .* is not a list of at most 256 numbers"),
        ({"capacity": -1}, "capacity: -1 is not a number of bytes from 0 up"),
    ],
)
def test_what_makes_no_sense_is_refused(given: object, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_costs(given)

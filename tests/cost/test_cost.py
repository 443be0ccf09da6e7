"""Costs: whole backwards, and what a host needs between actions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weft.cost import Cost, Share
from weft.errors import InputError
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.schedules import dualpipe, gpipe, naive, one_f_one_b, zb_h1
from weft.simulate import simulate


def with_backward(program: Program, seconds: float) -> Cost:
    cost = Share().cost(program)
    return replace(cost, times=replace(cost.times, backward=(seconds,) * program.stages))


def test_a_whole_backward_takes_its_own_time() -> None:
    program = one_f_one_b(devices=2, microbatches=2)
    seconds = with_backward(program, 1.75).durations(program)
    assert set(seconds[program.actions.kind == Kind.B]) == {1.75}
    assert set(seconds[program.actions.kind == Kind.F]) == {1.0}


def test_a_stage_that_is_split_anywhere_takes_both_halves() -> None:
    """Its weight gradients are deferred in every backward, the whole ones too."""
    program = dualpipe(devices=4, microbatches=8)
    assert {Kind.B, Kind.I, Kind.W} <= set(map(Kind, program.actions.kind))
    cost = with_backward(program, 1.75)
    np.testing.assert_array_equal(cost.durations(program), Share().cost(program).durations(program))


def test_the_host_keeps_a_device_waiting_but_not_its_messages() -> None:
    """Device 1 starts as soon as F0 has ended; device 0 takes a tenth more before F1."""
    program = gpipe(devices=2, microbatches=2)
    timeline = simulate(program, replace(Share().cost(program), overhead=0.1))
    assert timeline.start[:4] == pytest.approx([0, 1.1, 5.2, 7.3])  # F0 F1 B0 B1
    assert timeline.start[4:] == pytest.approx([1, 2.1, 3.2, 5.3])
    assert timeline.end - timeline.start == pytest.approx([1, 1, 2, 2] * 2)


def test_a_device_that_waits_anyway_hides_its_host() -> None:
    """Only the turn of device 1, from F0 to B0, waits for nothing else."""
    program = naive(devices=2, microbatches=1)
    cost = replace(Share().cost(program), overhead=0.5)
    assert simulate(program, cost).makespan == simulate(program).makespan + 0.5


def test_every_action_of_a_busy_device_pays_its_host() -> None:
    program = zb_h1(devices=1, microbatches=3)
    timeline = simulate(program, replace(Share().cost(program), overhead=0.25))
    assert timeline.makespan == 9 + 8 * 0.25


def test_the_host_costs_no_negative_time() -> None:
    cost = Share().cost(gpipe(devices=2, microbatches=2))
    with pytest.raises(InputError, match="overhead is -1"):
        replace(cost, overhead=-1)
    with pytest.raises(InputError, match="backward: 1 values for 2 stages"):
        replace(cost, times=replace(cost.times, backward=(1.0,)))

"""Costs: whole backwards, and what a host needs between actions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.verify import programs
from weft.cost import Cost, Link, Network, Provenance, Share
from weft.errors import InputError
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.ir.values import Value
from weft.lower import executable, replicated
from weft.notation import from_json, to_json
from weft.schedules import chimera, dualpipe, gpipe, naive, one_f_one_b, zb_h1
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


def test_a_norm_takes_the_latency_of_its_link_and_a_tied_weight_no_time_of_its_own() -> None:
    plain = programs.one_f_one_b(2, 2)
    program = executable(plain, ties=((0, 1),), norms=((0, 1),))
    cost = Share().cost(program)
    slow = replace(cost, network=Network(0.0, between={(0, 1): Link(latency=7.0)}))
    delays, dependencies = slow.delays(program), program.dependencies
    is_norm = dependencies.value == Value.NORM
    source = program.device_of[dependencies.producer]
    destination = program.device_of[dependencies.consumer]
    goes_down = (source == 0) & (destination == 1)
    assert (delays[is_norm & goes_down] == 7.0).all()
    assert (delays[is_norm & ~goes_down] == 0.0).all()
    assert (is_norm & goes_down).any()
    times = replace(cost.times, update=(1.0, 1.0), reduce=(1.0, 1.0))
    seconds = replace(cost, times=times).durations(program)
    is_tied = np.isin(program.actions.kind, (Kind.REDUCE, Kind.UPDATE))
    tied = is_tied & (program.actions.edge >= 0)
    assert (seconds[tied] == 0.0).all()
    assert (seconds[is_tied & ~tied] == 1.0).all()


def with_sums(program: Program, mark: Provenance) -> Cost:
    """A gradient of 6 bytes takes 7 s + 6 / 2 s to another device."""
    cost = Share().cost(program)
    return replace(
        cost,
        memory=replace(cost.memory, gradients=(6.0,) * program.stages),
        network=Network(0.0, Link(latency=7.0, bandwidth=2.0)),
        provenance={"reduce": (mark,) * program.stages},
    )


def test_gradients_travel_to_a_sum_that_was_measured_without_their_way() -> None:
    program = executable(chimera(devices=2, microbatches=2))
    dependencies = program.dependencies
    is_summed = (dependencies.value == Value.WEIGHT_GRADIENT) & (
        program.actions.kind[dependencies.consumer] == Kind.REDUCE
    )
    is_away = program.device_of[dependencies.producer] != program.device_of[dependencies.consumer]
    assert (is_summed & is_away).any()
    delays = with_sums(program, Provenance.MEASURED).delays(program)
    assert set(delays[is_summed & is_away]) == {10.0}
    assert set(delays[is_summed & ~is_away]) == {0.0}
    for mark in (Provenance.GIVEN, Provenance.DERIVED):
        assert not with_sums(program, mark).delays(program)[is_summed].any()


def test_copies_that_share_an_update_send_each_other_shares() -> None:
    """7 s + 3 / 2 s for half of the gradients, 7 s + 2 / 2 s for half of the weights."""
    program = executable(chimera(devices=2, microbatches=2), is_sharded=True)
    cost = with_sums(program, Provenance.MEASURED)
    cost = replace(cost, memory=replace(cost.memory, weights=(4.0, 4.0)))
    needs, kind = program.dependencies, program.actions.kind
    is_away = program.device_of[needs.producer] != program.device_of[needs.consumer]
    for reader, seconds in ((Kind.REDUCE, 8.5), (Kind.GATHER, 8.0)):
        assert {*cost.delays(program)[is_away & (kind[needs.consumer] == reader)]} == {seconds}


def test_of_three_copies_each_sums_a_part_and_sends_the_sum() -> None:
    """Two ways of 7 s, with a third of the gradients each: 14 s + 4 / 2 s."""
    program = executable(replicated(one_f_one_b(devices=2, microbatches=2), 3))
    needs, kind = program.dependencies, program.actions.kind
    is_away = program.device_of[needs.producer] != program.device_of[needs.consumer]
    delays = with_sums(program, Provenance.MEASURED).delays(program)
    assert {*delays[is_away & (kind[needs.consumer] == Kind.REDUCE)]} == {16.0}


def test_what_is_summed_and_gathered_takes_as_long_as_a_sum_alone() -> None:
    program = executable(chimera(devices=2, microbatches=2), is_sharded=True)
    cost = Share().cost(program)
    seconds = replace(cost, times=replace(cost.times, reduce=(3.0, 3.0))).durations(program)
    for kind in (Kind.REDUCE, Kind.GATHER):
        assert {*seconds[program.actions.kind == kind]} == {1.5}


def test_of_tied_weights_only_the_latency_is_known() -> None:
    program = executable(programs.one_f_one_b(2, 2), ties=((0, 1),))
    delays, dependencies = (
        with_sums(program, Provenance.MEASURED).delays(program),
        program.dependencies,
    )
    is_away = program.device_of[dependencies.producer] != program.device_of[dependencies.consumer]
    is_gradient = dependencies.value == Value.WEIGHT_GRADIENT
    assert set(delays[is_gradient & is_away]) == {7.0}


def test_closing_comes_between_the_last_gradient_and_the_update() -> None:
    """Device 1 ends B1 at 7, and device 0 at 9; its update may start a quarter later."""
    program = executable(one_f_one_b(devices=2, microbatches=2))
    cost = Share().cost(program)
    cost = replace(cost, times=replace(cost.times, close=(0.25, 0.5), update=(1.0, 1.0)))
    timeline = simulate(program, cost)
    is_update = program.actions.kind == Kind.UPDATE
    last = [timeline.end[(program.device_of == d) & ~is_update].max() for d in range(2)]
    assert timeline.start[is_update] == pytest.approx([last[0] + 0.25, last[1] + 0.5])
    assert from_json(to_json(cost)) == cost


def test_closing_holds_up_a_sum_and_a_norm() -> None:
    """The sum is beside the computation, which goes on at once."""
    program = executable(chimera(devices=2, microbatches=2), norms=((0, 1),))
    cost = Share().cost(program)
    closing = replace(cost, times=replace(cost.times, close=(0.25, 0.5)))
    dependencies, actions = program.dependencies, program.actions
    is_summed = (dependencies.value == Value.WEIGHT_GRADIENT) & (
        actions.kind[dependencies.consumer] == Kind.REDUCE
    )
    stage = actions.stage[dependencies.producer[is_summed]]
    np.testing.assert_array_equal(closing.delays(program)[is_summed], np.array([0.25, 0.5])[stage])
    np.testing.assert_array_equal(closing.gaps(program), cost.gaps(program))
    alone = executable(one_f_one_b(devices=2, microbatches=2), norms=((0, 1),))
    is_norm = alone.dependencies.value == Value.NORM
    assert set(closing.delays(alone)[is_norm]) == {0.25, 0.5}

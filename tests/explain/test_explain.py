"""Explanations: every figure is the timeline's, and advice is what simulation says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.cost import Cost, Share
from weft.explain import candidates, explain, in_words, larger, record, tried
from weft.explain.account import accounts, by_cause
from weft.explain.costs import changes
from weft.explain.holding import holdings
from weft.explain.options import helpful, recomputed
from weft.explain.path import path
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.lower import experts, recompute
from weft.schedules import REGISTRY, Shape, kimi_k2, one_f_one_b, pipedream, zbv
from weft.simulate import simulate
from weft.timeline import Category, Cause, Timeline

SHAPE = Shape(devices=4, microbatches=8)
TIMELINE = simulate(one_f_one_b.program(SHAPE))


def of(name: str, share: Share | None = None) -> Timeline:
    program = REGISTRY[name](devices=4, microbatches=8)
    program = program.unrolled() if program.period else program
    return simulate(program, (share or Share()).cost(program))


EVERY = pytest.mark.parametrize("name", [schedule.name for schedule in REGISTRY])


# time


@EVERY
def test_work_and_idle_time_make_up_the_whole(name: str) -> None:
    timeline = of(name, Share(latency=0.1))
    for account in accounts(timeline):
        assert account.work + account.idle == pytest.approx(timeline.makespan)
        assert sum(account.by_cause.values()) == pytest.approx(account.idle)


def test_the_first_device_of_1f1b() -> None:
    first = accounts(TIMELINE)[0]
    assert (first.work, first.idle) == (24, 9)
    assert first.by_cause == {Cause.ORDER: 6, Cause.VALUE: 3}
    assert first.stretches[0].seconds == 6


def test_causes_are_ranked() -> None:
    assert list(by_cause(TIMELINE.idle).values()) == [12, 12, 6, 6]


# the critical path


@EVERY
def test_kinds_and_waiting_make_up_the_critical_path(name: str) -> None:
    timeline = of(name, Share(latency=0.1))
    found = path(timeline)
    assert sum(found.kinds.values()) + found.waiting == pytest.approx(timeline.makespan)
    assert found.legs[0].start == 0
    assert found.legs[-1].end == pytest.approx(timeline.makespan)
    assert found.actions == len(timeline.critical_path.actions)


def test_the_legs_of_1f1b() -> None:
    there, stays, back = path(TIMELINE).legs
    assert (there.devices, there.end) == ((0, 1, 2), 3)
    assert (stays.devices, len(stays.actions), stays.end) == ((3,), 16, 27)
    assert (back.devices, back.end) == ((2, 1, 0), 33)
    assert there.is_passed_on
    assert not stays.is_passed_on


def test_what_travels_is_distinguished() -> None:
    found = path(of("1f1b", Share(latency=0.5)))
    assert found.waiting > 0
    assert set(found.kinds) == {Kind.F, Kind.B}


# memory


@EVERY
def test_categories_make_up_the_peak(name: str) -> None:
    timeline = of(name)
    for holding in holdings(timeline):
        assert holding.peak == timeline.memory.peaks[holding.device]
        assert sum(holding.categories.values()) == pytest.approx(holding.peak)


def test_the_fullest_device_of_1f1b() -> None:
    first = holdings(TIMELINE)[0]
    assert first.categories == {Category.ACTIVATIONS: 4, Category.WEIGHTS: 1}
    assert first.time == 3
    assert first.action is not None
    assert TIMELINE.program.actions[first.action].microbatch == 3


# what would help


def test_the_best_options_are_the_best() -> None:
    options = [tried(candidate, simulate) for candidate in candidates(one_f_one_b, SHAPE)]
    known = [option for option in options if option]
    best = helpful(TIMELINE, known)
    assert best["fastest"].seconds == min(option.seconds for option in known) == 25.5
    lean = best["fastest without more memory"]
    assert lean.memory <= max(TIMELINE.memory.peaks)
    assert best["leanest without more time"].seconds <= TIMELINE.makespan
    assert best["leanest"].seconds <= 1.5 * TIMELINE.makespan


def test_only_what_computes_the_same_is_compared() -> None:
    synchronous = {candidate.schedule.name for candidate in candidates(one_f_one_b, SHAPE)}
    assert "zbv" in synchronous
    assert not {"pipedream", "wpipe", "1f1b"} & synchronous
    others = {candidate.schedule.name for candidate in candidates(pipedream, SHAPE)}
    assert others == {"naive-async", "pipedream", "pipedream-2bw", "wpipe"}


def test_of_a_graph_only_what_takes_graphs() -> None:
    from weft.ir.graph import Graph

    shape = Shape.of_graph(Graph.two_tower(2), microbatches=4)
    assert {c.schedule.name for c in candidates(one_f_one_b, shape)} == {"gpipe"}


def test_a_candidate_that_the_costs_do_not_suit_is_left_out() -> None:
    cost: Cost = Share().cost(TIMELINE.program)
    options = {
        candidate.schedule.name: tried(candidate, lambda program: simulate(program, cost))
        for candidate in candidates(one_f_one_b, SHAPE)
    }
    assert options["gpipe"] is not None
    assert options["zbv"] is None  # twice as many stages


def test_twice_the_microbatches() -> None:
    candidate = larger(one_f_one_b, SHAPE)
    assert candidate is not None
    option = tried(candidate, simulate)
    assert option is not None
    assert (option.microbatches, option.seconds) == (16, 57)
    assert larger(pipedream, SHAPE) is None
    assert larger(one_f_one_b, SHAPE.but(microbatches=10**6)) is None


def test_recomputation() -> None:
    option = recomputed(TIMELINE)
    assert option is not None
    assert (option.seconds, option.memory) == (44, 2)
    assert recomputed(simulate(recompute(TIMELINE.program))) is None


def test_a_tenth_off_an_action_is_simulated() -> None:
    found = {change.words: change.seconds for change in changes(TIMELINE)}
    assert found["every forward 10% shorter"] == pytest.approx(33 - 1.1)
    assert len(found) == 3


def test_wires_and_uneven_stages_are_changed_where_there_are_any() -> None:
    slow = {change.words: change.seconds for change in changes(of("1f1b", Share(latency=0.5)))}
    assert slow["values that arrive at once"] == 33
    program = TIMELINE.program
    cost = Share().cost(program)
    heavy = replace(cost, times=replace(cost.times, forward=(1.0, 1.0, 1.0, 3.0)))
    uneven = {change.words: change.seconds for change in changes(simulate(program, heavy))}
    assert uneven["equal work on all stages"] < simulate(program, heavy).makespan


# words


def text(timeline: Timeline) -> str:
    return "\n".join(
        line
        for section in in_words(explain(timeline))
        for line in (*section.lines, *map(" ".join, section.rows))
    )


@EVERY
def test_every_schedule_is_explained(name: str) -> None:
    timeline = of(name)
    words = text(timeline)
    assert "The critical path has" in words
    assert "What would help" in words
    assert record(explain(timeline))["makespan"] == timeline.makespan


def test_a_wait_names_what_it_waits_for() -> None:
    assert "6 order (B0 needs B0 of device 1)" in text(TIMELINE)


def test_every_cause_has_a_meaning() -> None:
    assert all(cause.meaning for cause in Cause)


def test_a_pair_waits_as_one() -> None:
    program = kimi_k2(devices=4, microbatches=8, stages_per_device=2)
    assert "1.5 value (F7|I0' needs I0' of device 1)" in text(simulate(program))


def test_the_hosts_time_is_shown_and_what_it_would_be_without() -> None:
    cost = replace(Share().cost(TIMELINE.program), overhead=0.1)
    words = text(simulate(TIMELINE.program, cost))
    assert "the device's host works between two actions" in words
    assert "a host that takes no time 33 " in words


def test_whole_backwards_are_shortened_where_they_have_a_time_of_their_own() -> None:
    cost = Share().cost(TIMELINE.program)
    whole = replace(cost, times=replace(cost.times, backward=(2.0,) * 4))
    found = {one.words: one.seconds for one in changes(simulate(TIMELINE.program, whole))}
    assert found["every backward 10% shorter"] == pytest.approx(33 - 2.2)
    assert "every input gradient 10% shorter" not in found


def test_unit_costs_say_what_they_do_not_count() -> None:
    assert "an input kept to recompute it nothing" in text(TIMELINE)
    cost = Share().cost(TIMELINE.program)
    real = replace(cost, memory=replace(cost.memory, inputs=(0.5,) * 4, saved=(3.0,) * 4))
    assert "recompute it nothing" not in text(simulate(TIMELINE.program, real))


def test_without_sizes_nothing_is_said_of_memory() -> None:
    cost = Share().cost(TIMELINE.program)
    zeros = (0.0,) * 4
    empty = replace(cost, memory=replace(cost.memory, weights=zeros, saved=zeros))
    assert "holds most" not in text(simulate(TIMELINE.program, empty))


def test_what_mixes_versions_is_no_option_for_what_does_not() -> None:
    timeline = of("pipedream")
    options = [tried(candidate, _timed) for candidate in candidates(pipedream, SHAPE)]
    found = helpful(timeline, [option for option in options if option])
    assert "naive-async" in {option.name for option in options if option}
    assert "naive-async" not in {option.name for option in found.values()}


def _timed(program: Program) -> Timeline:
    return simulate(program.unrolled() if program.period else program)


def test_what_never_waits_says_so() -> None:
    program = one_f_one_b(devices=1, microbatches=4)
    assert "No device ever waits." in text(simulate(program))


def test_what_takes_no_time_is_explained_too() -> None:
    program = one_f_one_b(devices=2, microbatches=2)
    assert "A step takes 0" in text(simulate(program, Share(0, 0, 0).cost(program)))


def test_many_devices_and_legs_are_cut_short() -> None:
    words = text(simulate(zbv(devices=32, microbatches=64), None))
    assert "; 16 devices in between are left out." in words
    parts = experts(kimi_k2(devices=4, microbatches=8, stages_per_device=2), layers=1)
    assert "more" in text(simulate(parts))

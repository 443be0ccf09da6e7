"""Timelines: bubbles, idle causes, exposed communication, critical path and slack."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from weft.cost import Link, Provenance, Share
from weft.ir.actions import Action
from weft.ir.earliest import earliest
from weft.ir.graph import Graph
from weft.ir.kinds import Kind, Stream
from weft.ir.lanes import Lane
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.lower import offload, wires
from weft.schedules import REGISTRY, Shape, gpipe, naive, one_f_one_b, zb_h2
from weft.simulate import simulate
from weft.timeline import Cause, Timeline

PROGRAMS = [
    schedule.program(
        Shape(devices=4, microbatches=8, stages_per_device=schedule.stages_per_device[0])
    )
    for schedule in REGISTRY
    if not schedule.is_asynchronous
]


def _timeline(program: Program, overhead: float = 0.0, **share: float) -> Timeline:
    return simulate(program, replace(Share(**share).cost(program), overhead=overhead))


def _idle(timeline: Timeline, device: int) -> list[tuple[float, float, Cause]]:
    return [(s.start, s.end, s.cause) for s in timeline.idle if s.device == device]


def test_both_bubbles_of_zb_h2() -> None:
    """Zero bubble is a claim about spans: with a barrier at the step's end it has one."""
    bubble = simulate(zb_h2(devices=4, microbatches=8)).bubble
    assert bubble.span == pytest.approx(0)
    assert bubble.wall == pytest.approx(1 / 9)


def test_causes_in_naive_model_parallelism() -> None:
    timeline = simulate(naive(devices=2, microbatches=1))
    assert _idle(timeline, 0) == [(1, 4, Cause.VALUE)]
    assert _idle(timeline, 1) == [(0, 1, Cause.WARM_UP), (4, 6, Cause.COOL_DOWN)]


def test_order_is_the_cause_where_another_action_was_ready() -> None:
    """1F1B holds F4 back on device 0 until B0 has run, though its input is there."""
    timeline = simulate(one_f_one_b(devices=4, microbatches=8))
    first = timeline.idle[0]
    assert first.cause is Cause.ORDER
    assert timeline.program.actions[first.before or 0] == Action(0, Kind.B, 0)
    assert timeline.program.actions[first.waits_for or 0] == Action(1, Kind.B, 0)


def test_where_steps_overlap_the_ends_are_no_idle_time() -> None:
    """ZB-H2's claim: nothing is idle between a device's first action and its last."""
    program = zb_h2(devices=4, microbatches=8)
    cost = Share().cost(program)
    assert simulate(program, cost).idle
    assert simulate(program, replace(cost, is_barrier=False)).idle == []


def test_memory_is_the_cause_where_the_ready_action_would_not_fit() -> None:
    program = one_f_one_b(devices=4, microbatches=8)
    cost = Share().cost(program)
    for capacity, cause in ((5.0, Cause.MEMORY), (6.0, Cause.ORDER)):
        capped = replace(cost, memory=replace(cost.memory, capacity=capacity))
        assert simulate(program, capped).idle[0].cause is cause


@pytest.mark.parametrize("is_lowered", [False, True])
def test_a_value_on_its_way_is_the_wire(is_lowered: bool) -> None:
    program = naive(devices=2, microbatches=1)
    program = wires(program) if is_lowered else program
    timeline = _timeline(program, latency=0.5)
    assert _idle(timeline, 0) == [
        (1, 4.5, Cause.VALUE),
        (4.5, 5, Cause.WIRE),
    ]
    assert timeline.exposed_communication == [0.5, 0.0]


def test_what_lies_between_two_actions_is_the_hosts_first() -> None:
    timeline = _timeline(naive(devices=2, microbatches=1), latency=0.5, overhead=0.25)
    assert _idle(timeline, 0) == [
        (1, 1.25, Cause.HOST),
        (1.25, 4.75, Cause.VALUE),
        (4.75, 5.25, Cause.WIRE),
    ]
    assert _idle(timeline, 1)[1] == (2.5, 2.75, Cause.HOST)


@pytest.mark.parametrize("overhead", [0, 0.0625])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_idle_and_work_fill_the_makespan(program: Program, overhead: float) -> None:
    timeline = _timeline(program, latency=0.125, overhead=overhead)
    idle = np.zeros(program.devices)
    for stretch in timeline.idle:
        assert stretch.seconds > 0
        idle[stretch.device] += stretch.seconds
    assert idle + timeline.device_work == pytest.approx([timeline.makespan] * program.devices)


@pytest.mark.parametrize("overhead", [0, 0.0625])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_slack_is_what_can_be_lost(program: Program, overhead: float) -> None:
    """Lengthening an action by its slack costs nothing, by more costs the rest."""
    timeline = _timeline(program, latency=0.125, overhead=overhead)
    path = timeline.critical_path
    assert path.slack.min() == pytest.approx(0)
    assert path.slack[list(path.actions)] == pytest.approx(np.zeros(len(path.actions)))
    durations, gaps = timeline.cost.durations(program), timeline.cost.gaps(program)
    precedence = program.precedence(timeline.cost.delays(program)).with_gaps(gaps)
    for action in range(0, len(program), 7):
        for extra in (0.0, 0.75):
            longer = durations.copy()
            slot = int(program.slot_of[action])
            longer[slot] += path.slack[action] + extra
            ends = earliest(precedence, longer + gaps) + longer
            assert ends.max() == pytest.approx(timeline.makespan + extra)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_the_critical_path_is_tight(program: Program) -> None:
    timeline = _timeline(program)
    path = timeline.critical_path.actions
    assert timeline.start[path[0]] == 0
    assert timeline.end[path[-1]] == timeline.makespan
    for before, after in pairwise(path):
        assert timeline.end[before] == timeline.start[after]


def test_a_measured_timeline_is_the_same_type() -> None:
    """Times that no simulator made: a device that started late."""
    program = gpipe(devices=2, microbatches=2)
    made = simulate(program)
    late = Timeline(program, made.cost, made.start + 10, made.end + 10.5, is_measured=True)
    assert late.makespan == made.makespan + 0.5
    assert late.idle[0].start >= 10
    assert late.memory.peaks == made.memory.peaks


def test_latency_enters_once_per_round_trip() -> None:
    """Steady state of 1F1B: F + B + 2 c (D - 1)/D per microbatch, here 3.35 (D = 8, c = 0.2)."""
    runs = [
        _timeline(one_f_one_b(devices=8, microbatches=n), latency=0.2).makespan for n in (64, 128)
    ]
    assert (runs[1] - runs[0]) / 64 == pytest.approx(3.35)


def test_bandwidth_keeps_a_channel_busy_only_when_lowered() -> None:
    program = gpipe(devices=2, microbatches=4)
    unit = Share(forward=1, input_grad=0.5, weight_grad=0.5).cost(program)
    slow = replace(
        unit,
        network=replace(unit.network, message=(3.0,), default=Link(latency=1, bandwidth=1)),
    )
    apart = simulate(program, slow)
    queued = simulate(wires(program), slow)
    # Activations arrive 4 s after each forward, or 3 s after one another.
    assert apart.start[8] == queued.start[8] == 5
    assert [float(apart.start[8 + m]) for m in range(4)] == [5, 6, 7, 8]
    assert [float(queued.start[8 + m]) for m in range(4)] == [5, 8, 11, 14]


def test_a_link_can_differ_from_the_others() -> None:
    program = gpipe(devices=3, microbatches=1)
    unit = Share().cost(program)
    slow = replace(unit, network=replace(unit.network, between={(1, 2): Link(latency=5)}))
    assert simulate(program, slow).makespan == simulate(program).makespan + 5


def test_a_short_last_microbatch_takes_less() -> None:
    program = gpipe(devices=1, microbatches=4)
    cost = replace(Share().cost(program), sizes=(1, 1, 1, 0.5))
    assert simulate(program, cost).makespan == 3 * 3.5


def test_per_stage_costs() -> None:
    """Inception with branches of 1, 2, 3, 1: N * 9 + 3 (depth rule)."""
    graph = Graph.inception()
    program = REGISTRY["1f1b"].program(Shape.of_graph(graph, microbatches=16))
    base = Share().cost(program)
    scale = (1, 1, 2, 3, 1, 1)
    times = base.times
    scaled = replace(
        times,
        forward=tuple(a * b for a, b in zip(times.forward, scale, strict=True)),
        input_grad=tuple(a * b for a, b in zip(times.input_grad, scale, strict=True)),
        weight_grad=tuple(a * b for a, b in zip(times.weight_grad, scale, strict=True)),
    )
    assert simulate(program, replace(base, times=scaled)).makespan == 147


def test_recompute_keeps_inputs_and_one_working_set() -> None:
    program = gpipe(devices=2, microbatches=4, variant="recompute")
    unit = Share().cost(program)
    cost = replace(unit, memory=replace(unit.memory, inputs=(0.25, 0.25), weights=(0.0, 0.0)))
    assert simulate(program, cost).memory.peaks == [2.0, 2.0]
    plain = gpipe(devices=2, microbatches=4)
    assert simulate(plain, cost).memory.peaks == [4.0, 4.0]


def test_weights_gradients_and_optimizer_are_there_throughout() -> None:
    program = gpipe(devices=2, microbatches=1)
    unit = Share().cost(program)
    memory = replace(unit.memory, gradients=(2.0, 2.0), optimizer=(4.0, 8.0))
    assert simulate(program, replace(unit, memory=memory)).memory.peaks == [8.0, 12.0]


def test_offloaded_state_leaves_the_device() -> None:
    program = Program.build(
        "offload",
        Placement.straight(1),
        {
            Lane(0): [Action(0, k, m) for k in (Kind.F, Kind.B) for m in range(3)],
            Lane(0, Stream.OFFLOAD): [Action(0, Kind.OFFLOAD, 0)],
            Lane(0, Stream.ONLOAD): [Action(0, Kind.ONLOAD, 0)],
        },
        microbatches=3,
    )
    unit = Share().cost(program)
    cost = replace(unit, network=replace(unit.network, host=Link(bandwidth=1)))
    curve = simulate(program, cost).memory.total(0)
    # F0 ends at 1, its state is away at 2 and comes back at once: 3 saved and 1 of weights.
    assert curve.at(1.5) == 3
    assert curve.peak == 4


def _kinds_of_path(copy: float, amount: str) -> set[Kind]:
    """What decides the makespan of 1f1b whose copies to the host take as long."""
    program = one_f_one_b(devices=8, microbatches=32)
    unit = Share(forward=0.9, input_grad=1.1, weight_grad=0.7).cost(program)
    cost = replace(unit, network=replace(unit.network, host=Link(bandwidth=1 / copy)))
    timeline = simulate(offload(simulate(program, cost), amount=amount), cost)  # type: ignore[arg-type]
    return {timeline.program.actions[row].kind for row in timeline.critical_path.actions}


def test_loads_that_come_just_in_time_decide_nothing() -> None:
    """They end when their reader starts, which waits for something else as long."""
    assert _kinds_of_path(0.7, "auto") == {Kind.F, Kind.B}
    assert Kind.ONLOAD in _kinds_of_path(7.0, "all")


# provenance


def test_seconds_are_shared_out_by_how_they_are_known() -> None:
    program = one_f_one_b(devices=2, microbatches=4)
    plain = Share(forward=2, input_grad=1, weight_grad=1).cost(program)
    assert simulate(program, plain).provenance == {Provenance.GIVEN: 1.0}
    marks = {
        "forward": (Provenance.MEASURED, Provenance.DERIVED),
        "weight_grad": (Provenance.GIVEN, Provenance.INTERPOLATED),
    }
    timeline = simulate(program, replace(plain, provenance=marks))
    assert timeline.provenance == dict.fromkeys(Provenance, 0.25)
    assert list(timeline.provenance) == list(Provenance)
    assert replace(timeline, is_measured=True).provenance == {Provenance.MEASURED: 1.0}


def test_both_actions_of_a_pair_share_its_seconds() -> None:
    program = REGISTRY["dualpipe"](devices=4, microbatches=8)
    cost = Share(pair=2.0).cost(program)
    marks = {"forward": (Provenance.MEASURED,) * 4}
    shares = simulate(program, replace(cost, provenance=marks)).provenance
    pairs = int(program.actions.joined.sum())
    alone = 4 * 8 - pairs  # forwards
    work = simulate(program, cost).device_work.sum()
    assert shares[Provenance.MEASURED] == pytest.approx((alone + pairs * 2.0 / 2) / work)

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lower import rendezvous
from tests.lower.test_executable import TWO_PIPES, each_asynchronous, shared, valid, words
from tests.test_registry import each_schedule, shapes
from tests.verify import programs
from weft.cost import Cost, Link, Share
from weft.draw import plain, to_svg
from weft.errors import InputError
from weft.ir.kinds import Kind, Stream
from weft.ir.lanes import Lane
from weft.ir.program import Program
from weft.ir.values import Value
from weft.lower import (
    Groups,
    Meetings,
    executable,
    groups_of,
    one_wire,
    transfer_steps,
    unwired,
    wires,
)
from weft.lower.periods import step_of, without_epilogue
from weft.notation import from_json, from_text, to_json, to_text
from weft.schedules import REGISTRY, Schedule, Shape
from weft.simulate import simulate
from weft.verify import check, verify


def over(link: Link, program: Program) -> Cost:
    """Unit costs, and messages of one byte over this link."""
    cost = Share().cost(program)
    return replace(cost, network=replace(cost.network, message=1.0, default=link))


def timed(program: Program, link: Link, **times: tuple[float, ...]) -> Cost:
    """The same with these seconds of the stages."""
    cost = over(link, program)
    return replace(cost, times=replace(cost.times, **times))


def assert_ordered(program: Program, cost: Cost) -> Program:
    """What holds of every program on one wire; returns it."""
    ordered = one_wire(program, cost)
    check(ordered)
    assert from_text(to_text(ordered)) == from_json(to_json(ordered)) == ordered
    assert not any(lane.channel for lane in ordered.lanes)
    more = (ordered.steps - program.steps) * program.microbatches
    bodies = 1 + (more // program.period.microbatches if program.period else 0)
    as_long = program.unrolled(bodies) if program.period else program
    whole = ordered.unrolled(1) if ordered.period else ordered
    assert unwired(whole) == unwired(as_long)
    assert rendezvous.transfers(whole) == rendezvous.transfers(as_long)
    assert rendezvous.ends(whole)
    apart, together = simulate(as_long, cost).makespan, simulate(whole, cost).makespan
    assert together >= apart - 1e-9 * apart
    return ordered


@settings(deadline=None, max_examples=60)
@given(case=shapes(), is_sharing=st.booleans(), data=st.data())
def test_no_order_locks_up_whatever_the_cost(
    case: tuple[Schedule, Shape], data: st.DataObject, *, is_sharing: bool
) -> None:
    plain = valid(*case)
    if plain is None:
        return
    ties, norms = shared(plain) if is_sharing else ((), ())
    program = executable(plain, ties=ties, norms=norms)
    if verify(program).is_valid:  # a tie within a run of one update may wait for itself
        assert_ordered(program, data.draw(rendezvous.costs(program)))


@each_schedule
@pytest.mark.parametrize(("devices", "microbatches"), [(2, 4), (4, 8), (4, 5)])
def test_every_schedule_runs_on_one_wire(
    schedule: Schedule, devices: int, microbatches: int
) -> None:
    least, most = schedule.stages_per_device
    for variant in ("", *schedule.variants):
        shape = Shape(
            devices=devices,
            microbatches=microbatches,
            stages_per_device=least if most else 2,
            variant=variant,
            updates=6,
        )
        plain = valid(schedule, shape)
        if plain is not None:
            program = executable(plain)
            assert_ordered(program, over(Link(0.01, 7.0), program))


def test_transfers_come_as_their_values_do() -> None:
    program = executable(programs.one_f_one_b(2, 3))
    ordered = one_wire(program, Share().cost(program))
    assert words(ordered, Lane(0, Stream.WIRE)) == (
        "send:0-1F0 send:0-1F1 recv:0-1B0 send:0-1F2 recv:0-1B1 recv:0-1B2"
    )
    assert words(ordered, Lane(1, Stream.WIRE)) == (
        "recv:0-1F0 recv:0-1F1 send:0-1B0 recv:0-1F2 send:0-1B1 send:0-1B2"
    )


def test_the_cost_decides_which_comes_first() -> None:
    """Device 1 receives from both of its neighbours; what the slower one sends comes later."""
    program = executable(programs.one_f_one_b(3, 2))
    cost = Share().cost(program)
    first = {}
    for name, forward in {"early": (1.0, 1.0, 1.0), "late": (9.0, 1.0, 1.0)}.items():
        timed = replace(cost, times=replace(cost.times, forward=forward))
        lane = words(one_wire(program, timed), Lane(1, Stream.WIRE)).split()
        first[name] = lane.index("recv:0-1F1") < lane.index("recv:1-2B0")
    assert first == {"early": True, "late": False}


def test_what_has_no_wires_gets_them() -> None:
    program = programs.one_f_one_b(2, 3)
    assert one_wire(program) == one_wire(wires(program))


def test_it_is_done_once() -> None:
    with pytest.raises(InputError, match="has one wire for each device already"):
        one_wire(one_wire(programs.gpipe(2, 1)))


def test_one_device_has_nothing_to_order() -> None:
    program = executable(programs.gpipe(1, 2))
    assert one_wire(program) == program


def test_actions_of_a_pair_wait_for_what_both_read() -> None:
    """What a pair sends comes after all that it receives, on the same wire."""
    program = wires(programs.interleaved_pairs(extra=1))
    none = (0.0,) * program.stages
    assert_ordered(program, Share().cost(program))
    assert_ordered(program, timed(program, Link(), forward=none, input_grad=none, weight_grad=none))


# part of it


def between_hosts(source: int, destination: int) -> bool:
    """Two devices on each host."""
    return source // 2 != destination // 2


@each_schedule
def test_what_stays_within_a_host_keeps_its_channels(schedule: Schedule) -> None:
    least, most = schedule.stages_per_device
    plain = valid(
        schedule, Shape(devices=4, microbatches=8, stages_per_device=least if most else 2)
    )
    if plain is None:
        return
    program = executable(plain)
    ordered = one_wire(program, over(Link(0.1, 3.0), program), is_ordered=between_hosts)
    check(ordered)
    whole = ordered.unrolled(2) if ordered.period else ordered
    assert rendezvous.ends(whole)
    is_on_wire = np.array([lane.is_one_wire for lane in whole.lanes])[whole.lane_of]
    is_transfer = whole.far_end >= 0
    crosses = np.array(
        [
            far >= 0 and between_hosts(int(near), int(far))
            for near, far in zip(whole.device_of, whole.far_end, strict=True)
        ]
    )
    assert (is_on_wire[is_transfer] == crosses[is_transfer]).all()
    assert unwired(whole) == unwired(program.unrolled(2) if program.period else program)


# what a wire costs


def test_a_send_waits_until_its_receive_is_reached() -> None:
    """Device 0 sends F1 only after device 1 has sent B0, which its wire carries first."""
    lanes = ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]
    channels = wires(programs.program("1f1b", lanes, 2))
    order = {
        0: "send:0-1F0 recv:0-1B0 send:0-1F1 recv:0-1B1",
        1: "recv:0-1F0 send:0-1B0 recv:0-1F1 send:0-1B1",
    }
    text = [line for line in to_text(channels).splitlines() if " wire " not in line]
    text += [f"device {device} wire: {words_}" for device, words_ in order.items()]
    wire = from_text("\n".join(text))
    check(wire)
    for program, start in ((channels, 1.0 + 1.0), (wire, 1.5 + 1.0 + 2.0 + 0.5)):
        timeline = simulate(program, over(Link(0.0, 2.0), program))
        send = next(
            row
            for row, action in enumerate(program.actions)
            if action.kind is Kind.SEND_ACTIVATION and action.microbatch == 1
        )
        assert timeline.start[send] == pytest.approx(start)


def test_the_critical_path_leads_over_the_turn_of_a_wire() -> None:
    program = executable(programs.interleaved(4, 8, 2))
    cost = over(Link(0.0, 2.0), program)
    timeline = simulate(one_wire(program, cost), cost)
    path = list(timeline.critical_path.actions)
    lasts = (timeline.end - timeline.start)[path].sum()
    assert lasts == pytest.approx(timeline.makespan)
    turns = set(zip(*(rows.tolist() for rows in timeline.program.turns), strict=True))
    assert {(later, sooner) for sooner, later in pairwise(path)} & turns


def test_a_wire_is_drawn_as_channels_are() -> None:
    """Where only computations take time, the picture is the same."""
    program = executable(programs.one_f_one_b(3, 4))
    apart, together = (simulate(each) for each in (program, one_wire(program)))
    assert plain(together, width=90) == plain(apart, width=90)
    assert to_svg(together).count("<") == to_svg(apart).count("<")


# what repeats


def endless_steps(program: Program, bodies: int) -> list[int]:
    """The step that each transfer of the endless run needs, by what the program's own need."""
    assert program.period is not None
    steps = transfer_steps(program)
    turn = program.period.microbatches // program.microbatches
    found: list[int] = []
    for index, first in enumerate(program.bounds[:-1].tolist()):
        opening = first + program.period.prologue[index]
        body = steps[opening : opening + program.period.body[index]]
        found += steps[first:opening].tolist()
        found += [int(step) + turn * k for k in range(bodies) for step in body]
    return found


def ordered_by(program: Program) -> list[Program]:
    """On one wire, by several costs."""
    uneven = tuple(1.0 + 0.37 * (7 * stage % 5) for stage in range(program.stages))
    # One in which a wire repeats before the steps that its transfers need do.
    first = tuple((5.0, 2.0, 2.0)[stage % 3] for stage in range(program.stages))
    last = tuple((1.0, 1.0, 5.0)[stage % 3] for stage in range(program.stages))
    costs = [
        over(Link(), program),
        over(Link(0.2, 3.0), program),
        timed(program, Link(), forward=uneven, input_grad=uneven),
        timed(
            program,
            Link(0.0, 5.0),
            forward=first,
            input_grad=last,
            weight_grad=tuple(6.0 - seconds for seconds in last),
        ),
    ]
    return [assert_ordered(program, cost) for cost in costs]


def assert_calls_end(program: Program, groups: Groups | None = None) -> None:
    """With the data of each step, all of its computations run, and all of its transfers."""
    bodies = 9
    endless, needed = without_epilogue(program, bodies), np.array(endless_steps(program, bodies))
    machine = rendezvous.Machine(endless, groups)
    is_wire, step = endless.far_end >= 0, step_of(endless)
    for given_steps in range(1, bodies - program.steps):
        due = np.zeros(len(endless), np.bool_)
        for index in range(len(endless.lanes)):
            rows = slice(*endless.bounds[index : index + 2].tolist())
            reached = np.where(is_wire[rows], needed[rows], step[rows]) < given_steps
            due[rows] = np.logical_and.accumulate(reached)
        machine.may_run = due
        machine.run()
        assert machine.done[due].all()


@each_asynchronous
def test_each_call_ends_with_the_data_of_its_step(program: Program) -> None:
    for ordered in ordered_by(executable(program)):
        assert_calls_end(ordered)


@each_asynchronous
def test_both_ends_of_a_transfer_belong_to_one_call(program: Program) -> None:
    for ordered in ordered_by(executable(program)):
        endless = without_epilogue(ordered, 9)
        needed, needs = np.array(endless_steps(ordered, 9)), endless.dependencies
        rows = np.flatnonzero(needs.value == Value.MESSAGE)
        assert (needed[needs.producer[rows]] == needed[needs.consumer[rows]]).all()
        for index, lane in enumerate(endless.lanes):
            if lane.is_one_wire:
                mine = needed[endless.bounds[index] : endless.bounds[index + 1]]
                assert (np.diff(mine) >= 0).all()


def test_an_order_repeats_also_where_two_copies_work_on_one_step() -> None:
    program = executable(from_text(TWO_PIPES), norms=((0, 1),), ties=((0, 1),))
    for cost in (Share().cost(program), over(Link(0.3, 0.7), program)):
        assert_ordered(program, cost)


def test_a_wire_that_is_ahead_of_the_steps_gets_more_of_them() -> None:
    """Its first device sends at once, and slow gradients come long after: it settles late."""
    shape = Shape(devices=3, microbatches=1, updates=9)
    program = executable(REGISTRY["pipedream"].program(shape))
    cost = timed(
        program,
        Link(0.3, 1.0),
        forward=(0.0, 1.0, 0.0),
        input_grad=(5.0, 5.0, 0.0),
        weight_grad=(1.0, 0.0, 1.0),
    )
    ordered = assert_ordered(program, cost)
    assert ordered.steps == program.steps + 1
    assert ordered.period is not None
    assert program.period is not None
    assert ordered.period.repeats == program.period.repeats - 1


def test_where_nothing_repeats_all_belongs_to_one_call() -> None:
    program = one_wire(executable(programs.gpipe(2, 2)))
    steps = transfer_steps(program)
    assert set(steps[program.far_end >= 0].tolist()) == {0}
    assert set(steps[program.far_end < 0].tolist()) == {-1}


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000))
def test_an_order_repeats_by_costs_that_never_settle_alike(seed: int) -> None:
    """Whatever the cost, in a run of two-buffered weights each body has one order."""
    source = random.Random(seed)
    program = executable(programs.periodic_two_bw())
    cost = over(Link(source.random(), 0.3 + source.random()), program)
    times = tuple(source.random() * 5 for _ in range(program.stages))
    cost = replace(cost, times=replace(cost.times, forward=times))
    assert_ordered(program, cost)


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "zbv", "dualpipev"])
@pytest.mark.parametrize("latency", [0.02, 0.1, 0.3])
def test_without_a_cost_one_order_of_transfers_takes_little_longer(
    name: str, latency: float
) -> None:
    """Than channels beside each other: by a third of a transfer's share of a forward, or so.

    An order by when they start would take less by the simulation, and takes more on GPUs: what
    nobody exchanges at once waits, and slows down what is computed beside it.
    """
    program = executable(REGISTRY[name](devices=4, microbatches=16), is_updating=False)
    share = Share(input_grad=1.1, weight_grad=1.1, latency=latency * program.placement.share)
    ordered = one_wire(program)
    least = simulate(program, share.cost(program)).makespan
    together = Meetings.of(ordered, groups_of(ordered)).seconds(share.cost(ordered))
    assert together <= (1.005 + latency / 3) * least

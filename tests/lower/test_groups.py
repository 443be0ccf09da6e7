from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lower import rendezvous
from tests.lower.test_executable import each_asynchronous, valid
from tests.lower.test_transfers import assert_calls_end, over, timed
from tests.test_registry import each_schedule, shapes
from tests.verify import programs
from weft.cost import Link, Share
from weft.errors import InputError
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.lower import Groups, Meetings, executable, groups_of, launched_after, one_wire
from weft.lower.meetings import singly, unrolled
from weft.lower.periods import without_epilogue
from weft.notation import token
from weft.schedules import REGISTRY, Schedule, Shape
from weft.simulate import simulate
from weft.verify import check, verify


def whole(program: Program, groups: Groups, repeats: int = 3) -> tuple[Program, Groups]:
    """Both in full, where they repeat."""
    if program.period is None:
        return program, groups
    return program.unrolled(repeats), unrolled(program, groups, repeats)


@settings(deadline=None, max_examples=60)
@given(case=shapes(), tolerance=st.sampled_from([0.0, 0.25, 3.0]), data=st.data())
def test_groups_never_lock_up_and_cost_no_time(
    case: tuple[Schedule, Shape], tolerance: float, data: st.DataObject
) -> None:
    plain = valid(*case)
    if plain is None:
        return
    program = executable(plain)
    cost = data.draw(rendezvous.costs(program))
    ordered = one_wire(program, cost)
    groups = groups_of(ordered, cost, tolerance=tolerance)
    check(ordered, groups=groups)
    run, in_run = whole(ordered, groups)
    assert rendezvous.ends(run, in_run)
    if ordered.period is None:
        alone = simulate(ordered, cost).makespan
        assert Meetings.of(ordered, groups).seconds(cost) <= alone * (1 + 1e-6)
        assert rendezvous.ends(ordered, groups, launched_after(ordered, groups, cost))


@settings(deadline=None, max_examples=60)
@given(case=shapes(), data=st.data())
def test_one_by_one_they_take_as_long_as_the_simulation_says(
    case: tuple[Schedule, Shape], data: st.DataObject
) -> None:
    plain = valid(*case)
    if plain is None:
        return
    program = executable(plain)
    cost = data.draw(rendezvous.costs(program))
    ordered = one_wire(program, cost)
    if ordered.period is not None:
        ordered = ordered.unrolled(3)
    meetings = Meetings.of(ordered, singly(ordered))
    assert meetings.ends(cost) == pytest.approx(simulate(ordered, cost).end)


def test_a_transfer_is_launched_when_its_other_end_is_there() -> None:
    """Nothing is computed beside a receive that waits: at the end of 1f1b, for the next gradient.

    While the last device computes 2B3, device 0 has nothing to do but to wait for it.
    """
    program = executable(programs.one_f_one_b(3, 4), is_updating=False)
    ordered, cost = one_wire(program), Share().cost(program)
    groups = groups_of(ordered, cost)
    after = launched_after(ordered, groups, cost)
    found = {token(ordered, row): token(ordered, before) for row, before in after.items()}
    assert found["recv:0-1B2"] == "0B1"
    assert found["recv:0-1B3"] == "0B2"
    assert rendezvous.ends(ordered, groups, after)
    row = next(row for row in after if token(ordered, row) == "recv:0-1B2")
    assert not rendezvous.ends(ordered, groups, after | {row: after[row] + 1})


def test_both_directions_at_once_are_one_group() -> None:
    """Two devices that end F and B at the same time exchange what they have computed."""
    lanes = ["0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"]
    program = programs.program("exchange", lanes, 3)
    cost = over(Link(0.0, 2.0), program)
    times = replace(cost.times, forward=(1.0, 0.25), input_grad=(1.0, 0.25), weight_grad=(0.0, 0.0))
    cost = replace(cost, times=times)
    ordered = one_wire(program, cost)
    groups = groups_of(ordered, cost)
    assert groups == {0: (1, 2, 2, 1), 1: (1, 2, 2, 1)}
    together, alone = (Meetings.of(ordered, each).ends(cost) for each in (groups, singly(ordered)))
    received = [r for r, action in enumerate(ordered.actions) if action.kind is Kind.RECV_GRADIENT]
    assert together[received].tolist() == pytest.approx([2.5, 3.5, 4.5])
    assert alone[received].tolist() == pytest.approx([3.0, 4.0, 4.5])


def test_values_that_come_apart_are_sent_apart() -> None:
    ordered = one_wire(executable(programs.gpipe(2, 3)))
    cost = over(Link(0.0, 10.0), ordered)
    assert groups_of(ordered, cost) == singly(ordered)


def test_a_group_ends_when_its_last_transfer_does() -> None:
    """Both activations in one group: the first is there only when the second is computed."""
    ordered = one_wire(programs.program("pair", ["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"], 2))
    cost = over(Link(0.25, 4.0), ordered)
    ends = Meetings.of(ordered, {0: (2, 1, 1), 1: (2, 1, 1)}).ends(cost)
    receives = [r for r, a in enumerate(ordered.actions) if a.kind is Kind.RECV_ACTIVATION]
    assert ends[receives].tolist() == pytest.approx([2.0 + 0.25 + 0.25] * 2)


def test_groups_that_would_wait_for_each_other_are_dissolved() -> None:
    """By a cost of nothing all is there at once, and what is sent depends on what is received."""
    program = executable(programs.one_f_one_b(3, 4))
    cost = Share().cost(program)
    none = (0.0,) * program.stages
    times = replace(cost.times, forward=none, input_grad=none, weight_grad=none)
    ordered = one_wire(program, replace(cost, times=times))
    groups = groups_of(ordered, replace(cost, times=times))
    all_at_once = {device: (sum(sizes),) for device, sizes in groups.items()}
    assert not rendezvous.ends(ordered, all_at_once)
    assert rendezvous.ends(ordered, groups)


def test_other_groups_stay_where_some_are_dissolved() -> None:
    """Half of what is computed takes no time, so that some sends meet what they depend on."""
    shape = Shape(devices=3, microbatches=6, stages_per_device=2)
    program = executable(REGISTRY["interleaved-1f1b"].program(shape))
    cost = timed(
        program,
        Link(),
        forward=(1.0, 1.0, 1.0, 0.0, 1.0, 1.0),
        input_grad=(0.0, 1.0, 1.0, 0.0, 0.0, 0.0),
        weight_grad=(0.0, 0.0, 1.0, 0.0, 0.0, 0.0),
    )
    ordered = one_wire(program, cost)
    groups = groups_of(ordered, cost)
    assert max(max(sizes) for sizes in groups.values()) > 1
    assert rendezvous.ends(ordered, groups)


def test_groups_are_none_where_they_would_cost_time() -> None:
    """A generous tolerance lets early values wait for others: the simulation shows that."""
    shape = Shape(devices=3, microbatches=6, stages_per_device=2)
    program = executable(REGISTRY["zbv"].program(shape))
    cost = over(Link(0.0, 2.0), program)
    ordered = one_wire(program, cost)
    assert groups_of(ordered, cost) != singly(ordered)
    assert groups_of(ordered, cost, tolerance=2.0) == singly(ordered)


@each_asynchronous
def test_every_body_has_the_same_groups(program: Program) -> None:
    lowered = executable(program)
    cost = over(Link(0.0, 4.0), lowered)
    ordered = one_wire(lowered, cost)
    groups = groups_of(ordered, cost, tolerance=0.9)
    for repeats in (1, 2, 5):
        run, in_run = whole(ordered, groups, repeats)
        assert rendezvous.ends(run, in_run)
        sizes = {
            lane.device: len(run.lane(i)) for i, lane in enumerate(run.lanes) if lane.is_one_wire
        }
        assert {device: sum(mine) for device, mine in in_run.items()} == sizes


@each_asynchronous
def test_with_groups_each_call_ends_with_the_data_of_its_step(program: Program) -> None:
    lowered = executable(program)
    for link in (Link(), Link(0.0, 4.0), Link(2.0, 0.2)):
        cost = over(link, lowered)
        ordered = one_wire(lowered, cost)
        assert ordered.period is not None
        groups = groups_of(ordered, cost, tolerance=0.9)
        endless = without_epilogue(ordered, 9)
        in_run = {
            lane.device: before + 9 * body
            for lane, (before, body) in zip(ordered.lanes, opened(ordered, groups), strict=True)
            if lane.is_one_wire
        }
        assert {d: sum(s) for d, s in in_run.items()} == {
            d: len(s) for d, s in singly(endless).items()
        }
        assert_calls_end(ordered, in_run)


def opened(program: Program, groups: Groups) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """For each lane, the groups of its prologue and of its body."""
    assert program.period is not None
    for lane, opening, length in zip(
        program.lanes, program.period.prologue, program.period.body, strict=True
    ):
        sizes = tuple(groups.get(lane.device, ()))
        places = np.cumsum([0, *sizes]).tolist() if lane.is_one_wire else [0, opening]
        start = places.index(opening)
        stop = places.index(opening + length) if lane.is_one_wire else start
        yield sizes[:start], sizes[start:stop]


def test_a_group_of_two_steps_is_found() -> None:
    program = executable(REGISTRY["pipedream"].program(Shape(devices=3, microbatches=1, updates=6)))
    ordered = one_wire(program)
    groups = dict(singly(ordered)) | {0: (2, *singly(ordered)[0][2:])}
    (finding,) = verify(ordered, groups=groups).findings
    assert finding.rule == "in step"
    assert finding.message == (
        "pipedream on 3 devices: device 0 posts send:0-1F0 and send:0-1F1 as one group, and the"
        " second needs the data of step 1, the first of step 0 alone. Post them one after the"
        " other."
    )


def test_a_group_ends_where_a_body_does() -> None:
    """By this cost, values of two bodies are there at the same time."""
    program = executable(REGISTRY["pipedream"].program(Shape(devices=3, microbatches=1, updates=9)))
    cost = timed(
        program,
        Link(2.0, 0.2),
        forward=(1.0, 0.0, 2.0),
        input_grad=(2.0, 2.0, 2.0),
        weight_grad=(0.3, 0.0, 2.0),
    )
    ordered = one_wire(program, cost)
    check(ordered, groups=groups_of(ordered, cost))


def test_some_schedules_are_faster_by_groups() -> None:
    faster = set()
    for schedule in REGISTRY:
        least, most = schedule.stages_per_device
        plain = valid(
            schedule, Shape(devices=4, microbatches=8, stages_per_device=least if most else 2)
        )
        if plain is not None:
            program = executable(plain)
            cost = over(Link(0.0, 2.0), program)
            ordered = one_wire(program, cost)
            groups = whole(ordered, groups_of(ordered, cost))
            alone = simulate(groups[0], cost).makespan
            if Meetings.of(*groups).seconds(cost) < alone - 1e-6:
                faster.add(schedule.name)
    assert {"zbv", "dualpipev", "hanayo", "wpipe"} <= faster


@each_schedule
def test_at_random_the_rule_and_the_machine_agree(schedule: Schedule) -> None:
    least, most = schedule.stages_per_device
    shape = Shape(devices=3, microbatches=6, stages_per_device=least if most else 2, updates=3)
    plain = valid(schedule, shape)
    if plain is None:
        return
    ordered = one_wire(executable(plain).unrolled() if plain.period else executable(plain))
    source = np.random.default_rng(7)
    verdicts = set()
    for _ in range(12):
        most_together = int(source.integers(2, 5))
        groups = {
            device: tuple(cut_at_random(len(sizes), most_together, source))
            for device, sizes in singly(ordered).items()
        }
        ends = rendezvous.ends(ordered, groups)
        report = verify(ordered, groups=groups)
        assert report.is_valid == ends
        assert {finding.rule for finding in report.findings} <= {"one order"}
        verdicts.add(ends)
    assert False in verdicts


def cut_at_random(length: int, most: int, source: np.random.Generator) -> list[int]:
    sizes: list[int] = []
    while sum(sizes) < length:
        sizes.append(int(source.integers(1, min(most, length - sum(sizes)) + 1)))
    return sizes


def test_groups_of_other_wires_are_refused() -> None:
    ordered = one_wire(programs.gpipe(2, 2))
    with pytest.raises(InputError, match="groups of device 1 have 3 transfers, its wire has 4"):
        verify(ordered, groups={0: (1, 1, 1, 1), 1: (1, 2)})
    with pytest.raises(InputError, match="groups of device 0 have 0 transfers"):
        verify(ordered, groups={})


def test_a_group_across_the_end_of_a_body_is_refused() -> None:
    ordered = one_wire(executable(programs.periodic_two_bw()))
    everything = {device: (len(sizes),) for device, sizes in singly(ordered).items()}
    with pytest.raises(InputError, match="transfers of the body and others"):
        verify(ordered, groups=everything)

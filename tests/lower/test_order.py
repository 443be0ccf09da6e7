from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_registry import shapes
from tests.verify import programs
from weft.cost import Share
from weft.errors import ProgramError
from weft.ir.actions import Index
from weft.ir.graph import Graph, Stage
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.lower import executable, launch_order
from weft.schedules import REGISTRY, Schedule, Shape
from weft.simulate import simulate
from weft.timeline import Timeline
from weft.verify import verify


def assert_can_be_launched(program: Program, order: Index) -> None:
    """Every row once, lanes in order, and what is read before its readers."""
    place = np.full(len(program), -1)
    place[order] = np.arange(len(order))
    assert sorted(order.tolist()) == list(range(len(program)))
    for index in range(len(program.lanes)):
        rows = slice(int(program.bounds[index]), int(program.bounds[index + 1]))
        assert (np.diff(place[rows]) > 0).all()
    dependencies = program.dependencies
    assert (place[dependencies.producer] < place[dependencies.consumer]).all()


@settings(deadline=None, max_examples=40)
@given(case=shapes(), latency=st.sampled_from([0.0, 0.5]))
def test_lanes_keep_their_order_and_nothing_comes_before_what_it_reads(
    case: tuple[Schedule, Shape], latency: float
) -> None:
    schedule, shape = case
    if schedule.accepts(shape) is not None or not verify(schedule.program(shape)).is_valid:
        return
    program = executable(schedule.program(shape))
    timeline = simulate(program, Share(latency=latency).cost(program))
    assert_can_be_launched(program, launch_order(timeline))


def test_actions_that_take_no_time_come_after_what_they_read() -> None:
    """Sends and receives without latency start with their readers, in rows after them."""
    program = executable(programs.one_f_one_b(3, 4), ties=((0, 2),), norms=((0, 1, 2),))
    still = Timeline(program, Share().cost(program), np.zeros(len(program)), np.zeros(len(program)))
    assert_can_be_launched(program, launch_order(still))


def test_what_starts_earlier_comes_earlier() -> None:
    program = programs.gpipe(2, 3)
    timeline = simulate(program)
    assert (np.diff(timeline.start[launch_order(timeline)]) >= 0).all()


def test_rows_that_start_together_and_do_not_read_each_other_keep_their_order() -> None:
    apart = Graph((Stage(), Stage()), ())
    program = programs.program("apart", ["0F0 0B0", "1F0 1B0"], 1, graph=apart)
    assert launch_order(simulate(program)).tolist() == [0, 2, 1, 3]


def test_a_circle_has_no_order() -> None:
    program = programs.program("stuck", ["0B0 0F0"], 1)
    times = np.zeros(len(program))
    with pytest.raises(ProgramError, match="never ends"):
        launch_order(Timeline(program, Share().cost(program), times, times))


@pytest.mark.parametrize("name", ["chimera", "dualpipe"])
def test_no_device_waits_for_a_norm_before_it_takes_part_in_the_sums_of_it(name: str) -> None:
    """Hosts that launch in this order come to an end, though updates wait for all sums."""
    bare = REGISTRY[name](devices=4, microbatches=8)
    program = executable(bare, norms=[range(bare.stages)])
    kind, order = program.actions.kind, launch_order(simulate(program)).tolist()
    sums = set(np.flatnonzero(kind == Kind.REDUCE).tolist())
    hosts = [[r for r in order if program.device_of[r] == d] for d in range(program.devices)]
    launched = set[int]()
    while any(hosts):
        before = len(launched)
        for rows in hosts:
            while rows and (kind[rows[0]] != Kind.UPDATE or sums <= launched):
                launched.add(rows.pop(0))
        assert len(launched) > before

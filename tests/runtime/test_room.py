"""Forwards wait for room that what leaves for the host makes, where that costs no time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.cost import Cost, Link, Share
from weft.ir.kinds import Layer
from weft.ir.program import Program
from weft.lower import experts, offload
from weft.runtime.lane.room import PRICE, SLOWER, with_room
from weft.schedules import one_f_one_b
from weft.simulate import simulate

PIECES = 8


def priced(program: Program, copy: float) -> Cost:
    """Unit costs, by which what a stage saves takes this part of F + B to leave."""
    unit = Share().cost(program)
    host = Link(bandwidth=SLOWER / (3 * copy))
    return replace(unit, network=replace(unit.network, host=host))


def offloading(copy: float) -> tuple[Program, Cost]:
    plain = one_f_one_b(devices=4, microbatches=16)
    cut = experts(plain, layers=[[Layer.PLAIN] * PIECES] * 4)
    cost = priced(plain, copy)
    return offload(simulate(cut, cost), amount="all"), cost


# The first device holds 4 microbatches where nothing leaves. A forward takes a third of F + B: what
# it keeps leaves as fast only where copies take no longer. A slower copy leaves the part on the
# device that could not leave during the forward, and half a piece or so each way.
@pytest.mark.parametrize(("copy", "kept"), [(1 / 3, 0.6), (0.5, 0.8), (0.7, 1.1), (0.9, 1.3)])
def test_little_is_on_its_way_and_the_step_takes_as_long(copy: float, kept: float) -> None:
    program, cost = offloading(copy)
    plain = simulate(one_f_one_b(devices=4, microbatches=16), priced(program, copy))
    timeline = with_room(program, cost)
    assert timeline.makespan <= (1 + PRICE) * plain.makespan
    assert timeline.memory.peaks[0] - 1 <= kept  # the weights are one


def test_without_waiting_most_would_be_on_the_device() -> None:
    program, cost = offloading(0.7)
    assert simulate(program, cost).memory.peaks[0] - 1 > 2
    assert with_room(program, cost).memory.peaks[0] - 1 < 1.1


def test_a_link_that_is_too_slow_makes_nothing_wait_in_vain() -> None:
    program, cost = offloading(2.0)
    slower = replace(cost, network=replace(cost.network, host=Link(bandwidth=1 / 6.0)))
    timeline = with_room(program, cost)
    assert timeline.makespan <= (1 + PRICE) * simulate(program, slower).makespan


def test_what_does_not_offload_is_launched_as_it_is_simulated() -> None:
    program = one_f_one_b(devices=4, microbatches=8)
    assert with_room(program, None).makespan == simulate(program).makespan

"""The order of what all devices launch, fed step by step: hosts that wait in it never lock up."""

from __future__ import annotations

from itertools import islice, pairwise, product

import numpy as np
import pytest

from tests.lower.test_executable import asynchronous, shared
from weft.ir.earliest import Seconds
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.lower import StepOrder, executable, one_wire, step_order
from weft.lower.order import sums_of_norms
from weft.lower.periods import released, without_epilogue
from weft.notation import from_text
from weft.schedules import REGISTRY

BODIES = 50  # far beyond those that an order is found by


# Devices that have unequally many sums: some have a part ready when others are not that far.
MEETING = """\
weft program 1
name pipes that meet
microbatches 2
graph chain 2
place 0 1
place 1 2
pipes 0 1
period 2 versions 1 repeats 4
device 0: 0F0@0 0B0@0 0U@0 0F2@0 0B2@0 0U@1 [ 0F4@1 0B4@1 0U@2 ]
device 1: 0F1@0 1F0@0 1B0@0 0B1@0 1U@0 0U@0#1 0F3@0 1F2@0 1B2@0 0B3@0 1U@1 0U@1#1 \
[ 0F5@1 1F4@1 1B4@1 0B5@1 1U@2 0U@2#1 ]
device 2: 1F1@0 1B1@0 1U@0#1 1F3@0 1B3@0 1U@1#1 [ 1F5@1 1B5@1 1U@2#1 ]
"""
TOGETHER = """\
weft program 1
name a pipe on one device
microbatches 2
graph chain 2
place 2 0
place 1 1
pipes 0 1
period 2 versions 1 repeats 4
device 0: 1F0@0 1B0@0 1U@0 1F2@0 1B2@0 1U@1 [ 1F4@1 1B4@1 1U@2 ]
device 1: 0F1@0 1F1@0 1B1@0 0B1@0 1U@0#1 0U@0#1 0F3@0 1F3@0 1B3@0 0B3@0 1U@1#1 0U@1#1 \
[ 0F5@1 1F5@1 1B5@1 0B5@1 1U@2#1 0U@2#1 ]
device 2: 0F0@0 0B0@0 0U@0 0F2@0 0B2@0 0U@1 [ 0F4@1 0B4@1 0U@2 ]
"""
UNEQUAL = [from_text(MEETING), from_text(TOGETHER)]

each_program = pytest.mark.parametrize("program", [*asynchronous(), *UNEQUAL], ids=lambda p: p.name)


WAYS = product(("channels", "one wire"), ("summed", "sharded"), ("unclipped", "clipped"))


@pytest.fixture(params=WAYS, ids=" ".join)
def walked(program: Program, request: pytest.FixtureRequest) -> Program:
    """What a pipeline with a tied weight runs."""
    wiring, summing, clipping = request.param
    ties, norms = shared(program)
    norms = norms if clipping == "clipped" else ()
    found = executable(program, ties=ties, norms=norms, is_sharded=summing == "sharded")
    return one_wire(found) if wiring == "one wire" else found


def placed(order: StepOrder, endless: Program) -> Seconds:
    """The place of each action of an endless run."""
    lengths = np.diff(endless.bounds).tolist()
    lanes = enumerate(lengths)
    return np.array([p for lane, length in lanes for p in islice(order.places(lane), length)])


@each_program
def test_nothing_comes_before_what_it_reads_however_long_it_runs(walked: Program) -> None:
    endless = without_epilogue(walked, BODIES)
    place, needs = placed(step_order(walked), endless), endless.dependencies
    is_apart = endless.slot_of[needs.producer] != endless.slot_of[needs.consumer]
    assert (place[needs.producer] < place[needs.consumer])[is_apart].all()
    for first, stop in pairwise(endless.bounds.tolist()):
        assert (np.diff(place[first:stop]) >= 0).all()


@each_program
def test_whoever_has_the_data_of_a_place_gets_there(walked: Program) -> None:
    """Also who waits there for others: what they have to do first is no later, on any device."""
    order, endless = step_order(walked), without_epilogue(walked, BODIES)
    steps = np.array([order.step(place) for place in placed(order, endless).tolist()])
    assert (steps >= released(endless)).all()


def meeting_of(program: Program, row: int) -> tuple[int, frozenset[int]]:
    """What a part of a sum or gather has in common with those on other devices."""
    read = (producer for producer, _ in program.dependencies.read_by(row))
    return int(program.actions.kind[row]), frozenset(read)


@each_program
def test_sums_are_whole_before_one_of_their_parts_is_read(walked: Program) -> None:
    endless = without_epilogue(walked, 12)
    place, needs = placed(step_order(walked), endless), endless.dependencies
    sums = (Kind.REDUCE, Kind.GATHER)
    parts = np.flatnonzero(np.isin(endless.actions.kind, sums)).tolist()
    last: dict[object, float] = {}
    for row in parts:
        key = meeting_of(endless, row)
        last[key] = max(last.get(key, 0.0), place[row])
    assert parts, "ties are summed"
    for consumer, producer in zip(needs.consumer.tolist(), needs.producer.tolist(), strict=True):
        if endless.actions.kind[producer] in sums and endless.actions.kind[consumer] not in sums:
            assert last[meeting_of(endless, producer)] < place[consumer]


@each_program
def test_whoever_waits_for_a_norm_has_taken_part_in_its_sums(walked: Program) -> None:
    endless = without_epilogue(walked, 12)
    place, (summed, waiting) = placed(step_order(walked), endless), sums_of_norms(endless)
    assert (place[summed] < place[waiting]).all()


def test_the_data_of_a_step_come_before_all_that_the_next_one_releases() -> None:
    program = executable(REGISTRY["pipedream-2bw"](devices=2, microbatches=2, updates=5))
    order, endless = step_order(program), without_epilogue(program, 12)
    place, since = placed(order, endless), released(endless)
    for step in range(10):
        assert place[since <= step].max() < (step + 1) * order.width <= place[since > step].min()

"""Shared updates: copies of a stage gather what each of them has updated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.lower.test_executable import equally_stale
from tests.verify import programs
from weft.cost import Share
from weft.ir.kinds import Kind, Stream
from weft.ir.program import Program
from weft.lower import executable, replicated
from weft.notation import from_json, from_text, to_json, to_text
from weft.schedules import REGISTRY, Schedule, chimera, pipedream_2bw, wpipe
from weft.simulate import simulate
from weft.timeline import Category
from weft.verify import check


def seconds(program: Program) -> float:
    """Of a run in which a sum, or a sum and a gather together, take 4."""
    cost = Share().cost(program)
    slow = replace(cost, times=replace(cost.times, reduce=(4.0,) * program.stages))
    return float(simulate(program, slow).end.max())


def test_every_schedule_can_share_its_updates() -> None:
    """Proved, with a gather for each update, and the same when it is lowered again."""
    for one in REGISTRY:
        lowered = executable(replicated(one(devices=2, microbatches=4), 2), is_sharded=True)
        check(lowered)
        kinds = lowered.actions.kind
        assert (kinds == Kind.GATHER).sum() == (kinds == Kind.UPDATE).sum(), one.name
        assert executable(lowered) == lowered


def test_what_has_no_copies_gathers_nothing() -> None:
    program = programs.one_f_one_b(2, 4)
    assert executable(program, is_sharded=True) == executable(program)
    assert executable(chimera(devices=2, microbatches=2), is_sharded=True, is_updating=False) == (
        executable(chimera(devices=2, microbatches=2), is_updating=False)
    )


def test_synchronous_gathers_come_last_as_the_next_step_begins() -> None:
    """Stage by stage, though updates are made from the last stage on."""
    program = executable(chimera(devices=4, microbatches=4), is_sharded=True)
    for index, lane in enumerate(program.lanes):
        if lane.stream is Stream.REDUCE:
            found = [(action.kind, action.stage) for action in program.lane(index)]
            gathered = [stage for kind, stage in found if kind is Kind.GATHER]
            assert gathered == sorted(gathered)
            assert [kind for kind, _ in found] == [Kind.REDUCE] * 2 + [Kind.GATHER] * 2


@pytest.mark.parametrize("schedule", [pipedream_2bw, wpipe])
def test_between_microbatches_a_gather_costs_no_time(schedule: Schedule) -> None:
    """An update stands half-way between the last gradient and the first use of its version."""
    program = replicated(schedule(devices=4, microbatches=8), 2)
    assert seconds(executable(program, is_sharded=True)) <= seconds(executable(program))


def test_replicas_of_copies_that_share_updates_share_them_as_well() -> None:
    program = chimera(devices=2, microbatches=2)
    once = executable(replicated(executable(program, is_sharded=True), 2))
    assert once == executable(replicated(executable(program), 2), is_sharded=True)


def test_tied_weights_have_gathers_of_their_own() -> None:
    program = executable(chimera(devices=2, microbatches=2), ties=((0, 1),), is_sharded=True)
    check(program)
    gathers = program.actions.take((program.actions.kind == Kind.GATHER).nonzero()[0])
    assert sorted(gathers.edge.tolist()) == [-1] * 4 + [0] * 4
    assert from_text(to_text(program)) == from_json(to_json(program)) == program


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize(
    "program",
    [
        wpipe(devices=2, microbatches=4),
        wpipe(devices=4, microbatches=8, round=8, variant="eager"),
        pipedream_2bw(devices=4, microbatches=8, variant="fresh"),
    ],
    ids=lambda program: program.name,
)
def test_tied_weights_are_gathered_when_they_are_needed(program: Program, replicas: int) -> None:
    """Their update may come long after that of a stage which they are part of."""
    copies, ties = replicated(program, replicas), ((0, program.stages - 1),)
    for norms in ((), equally_stale(copies)):
        check(executable(copies, ties=ties, norms=norms, is_sharded=True))


def test_each_copy_keeps_its_share_of_the_state() -> None:
    program = replicated(programs.one_f_one_b(2, 2), 4)
    peaks = []
    for lowered in (executable(program), executable(program, is_sharded=True)):
        cost = Share().cost(lowered)
        cost = replace(cost, memory=replace(cost.memory, optimizer=(8.0, 16.0)))
        usage = simulate(lowered, cost).memory
        peaks.append([curves[Category.OPTIMIZER].peak for curves in usage.curves])
    assert peaks == [[8.0, 16.0] * 4, [2.0, 4.0] * 4]

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_registry import shapes
from tests.verify import programs
from weft.cost import Share
from weft.errors import InputError, ProgramError
from weft.ir.actions import Actions
from weft.ir.graph import Backward
from weft.ir.kinds import Kind, Stream
from weft.ir.lanes import Lane
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.ir.versions import staleness
from weft.lower import (
    executable,
    experts,
    offload,
    recompute,
    split,
    unpaired,
    unwired,
    updates,
    wires,
)
from weft.lower.periods import step_of
from weft.notation import from_json, from_text, to_json, to_text, token
from weft.schedules import REGISTRY, Schedule, Shape
from weft.simulate import simulate
from weft.verify import check, verify

Groups = tuple[tuple[int, ...], ...]


def recomputed(program: Program) -> Program:
    """Unless it is already."""
    is_again = (program.actions.kind == Kind.R).any()
    return program if is_again else recompute(program)


PASSES = {"plain": lambda p: p, "split": split, "recompute": recomputed}


# Two asynchronous pipes: gradients of both copies of a stage make the version after next.
TWO_PIPES = """\
weft program 1
name two pipes
microbatches 2
graph chain 2
place 0 1
place 1 0
pipes 0 1
period 2 versions 1 repeats 4
device 0: 0F0@0 1F1@0 1B1@0 0B0@0 1U@0#1 0U@0 0F2@0 1F3@0 1B3@0 0B2@0 1U@1#1 0U@1 \
[ 0F4@1 1F5@1 1B5@1 0B4@1 1U@2#1 0U@2 ]
device 1: 0F1@0 1F0@0 1B0@0 0B1@0 1U@0 0U@0#1 0F3@0 1F2@0 1B2@0 0B3@0 1U@1 0U@1#1 \
[ 0F5@1 1F4@1 1B4@1 0B5@1 1U@2 0U@2#1 ]
"""


def words(program: Program, lane: Lane) -> str:
    """A lane in words, without the stage where the program has one on each device."""
    index = program.lanes.index(lane)
    rows = range(int(program.bounds[index]), int(program.bounds[index + 1]))
    return " ".join(token(program, row) for row in rows)


def equally_stale(program: Program) -> Groups:
    """Stages that can share a norm without waiting for the data of a later step."""
    groups: dict[int, list[int]] = {}
    for stage, stale in enumerate(staleness(program)):
        groups.setdefault(stale, []).append(stage)
    return tuple(map(tuple, groups.values()))


def shared(program: Program) -> tuple[Groups, Groups]:
    """The embedding tied to the output, and the widest norms that no schedule waits for."""
    ties = ((0, program.stages - 1),) if program.stages > 1 else ()
    return ties, equally_stale(program)


def valid(schedule: Schedule, shape: Shape) -> Program | None:
    if schedule.accepts(shape) is not None:
        return None
    program = schedule.program(shape)
    return program if verify(program).is_valid else None


def asynchronous() -> list[Program]:
    """Every asynchronous schedule and every variant of it, long enough to repeat."""
    found = [from_text(TWO_PIPES)]
    for schedule in (each for each in REGISTRY if each.is_asynchronous):
        for variant in ("", *schedule.variants):
            shape = Shape(
                devices=3,
                microbatches=6,
                stages_per_device=schedule.stages_per_device[0],
                variant=variant,
                round=6 if schedule.takes_round else 0,
                updates=9,
            )
            found.append(schedule.program(shape).renamed(f"{schedule.name} {variant}"))
    return found


each_asynchronous = pytest.mark.parametrize("program", asynchronous(), ids=lambda p: p.name)


# any schedule


@settings(deadline=None, max_examples=60)
@given(
    case=shapes(),
    change=st.sampled_from(list(PASSES)),
    has_ties=st.booleans(),
    has_norms=st.booleans(),
)
def test_what_ranks_walk_is_valid_ends_and_comes_back_from_text(
    case: tuple[Schedule, Shape], change: str, *, has_ties: bool, has_norms: bool
) -> None:
    plain = valid(*case)
    if plain is None:
        return
    ties, norms = shared(plain)
    program = executable(
        PASSES[change](plain), ties=ties if has_ties else (), norms=norms if has_norms else ()
    )
    check(program)
    simulate(program)
    assert from_json(to_json(program)) == program
    assert from_text(to_text(program)) == program
    assert set(map(Lane, range(program.devices))) <= set(program.lanes)
    assert not program.actions.joined.any()
    assert not (program.actions.kind == Kind.FREE).any()


def test_an_update_waits_for_its_norm_also_in_a_run_of_one_step() -> None:
    plain = REGISTRY["wpipe"](devices=1, microbatches=1, updates=1)
    program = executable(plain, norms=[[0, 1]])
    check(program)
    assert to_text(program).splitlines()[-1].endswith("0B0@0 1U@0 0U@0")


@settings(deadline=None, max_examples=40)
@given(case=shapes(), latency=st.sampled_from([0.0, 0.25]))
def test_without_ties_and_norms_a_step_takes_as_long_as_its_passes_say(
    case: tuple[Schedule, Shape], latency: float
) -> None:
    schedule, shape = case
    plain = valid(schedule, shape)
    if plain is None or schedule.is_asynchronous:
        return
    cost = Share(latency=latency).cost(plain)
    known = simulate(wires(updates(unpaired(plain))), cost)
    assert simulate(executable(plain), cost).makespan == pytest.approx(known.makespan)


@settings(deadline=None, max_examples=30)
@given(case=shapes())
def test_it_is_made_once(case: tuple[Schedule, Shape]) -> None:
    plain = valid(*case)
    if plain is not None:
        ties, norms = shared(plain)
        program = executable(plain, ties=ties, norms=norms)
        assert executable(program) == program


# one step


def test_a_step_is_wired_and_updated_at_its_end() -> None:
    program = executable(programs.one_f_one_b(2, 2))
    assert words(program, Lane(0)) == "0F0 0F1 0B0 0B1 0U@0"
    assert program == wires(updates(programs.one_f_one_b(2, 2)))


def test_wires_are_taken_off_and_added_anew() -> None:
    program = programs.one_f_one_b(2, 3)
    assert executable(wires(program)) == executable(program)


def test_pairs_run_one_after_the_other() -> None:
    program = programs.interleaved_pairs(extra=1)
    assert unwired(executable(program)).contents()[Lane(0)][:-2] == (
        program.contents()[Lane(0)].replace(joined=0)
    )


def test_copies_of_a_stage_are_summed_even_where_nothing_is_updated() -> None:
    program = executable(programs.chimera(), is_updating=False)
    check(program)
    assert not (program.actions.kind == Kind.UPDATE).any()
    assert words(program, Lane(0, Stream.REDUCE)) == "reduce:1@0#1 reduce:0@0"


def test_an_updated_step_loses_its_updates_where_nothing_is_to_be_updated() -> None:
    program = programs.one_f_one_b(2, 2)
    assert executable(updates(program), is_updating=False) == wires(program)


def test_weights_that_updates_make_cannot_be_used_without_them() -> None:
    with pytest.raises(InputError, match="its own updates make"):
        executable(programs.two_bw(3), is_updating=False)


def test_a_device_of_a_pipe_without_microbatches_has_a_lane() -> None:
    """Pipe 1 lives on device 1 alone, and no microbatch takes it."""
    program = Program.build(
        "idle",
        Placement(((0, 0), (1, 1))),
        {Lane(0): programs.actions("0F0 1F0 1B0 0B0")},
        microbatches=1,
    )
    walked = executable(program)
    check(walked)
    assert words(walked, Lane(1)) == "0U@0#1 1U@0#1"


def test_ends_of_a_tied_weight_are_summed_after_the_copies_of_their_stages() -> None:
    program = executable(programs.chimera(), ties=((0, 1),))
    check(program)
    assert words(program, Lane(0, Stream.REDUCE)) == (
        "reduce:1@0#1 reduce:0@0 reduce:0@0~0 reduce:1@0~0#1"
    )
    assert words(program, Lane(0)).endswith("1U@0#1 1U@0~0#1 0U@0 0U@0~0")


def test_reductions_have_one_order_on_all_devices() -> None:
    program = executable(programs.chimera(), ties=((0, 1),))
    orders = [
        [(action.stage if action.edge is None else -1, action.edge) for action in program.lane(i)]
        for i, lane in enumerate(program.lanes)
        if lane.stream is Stream.REDUCE
    ]
    assert [list(dict.fromkeys(order)) for order in orders] == [
        list(dict.fromkeys(orders[0])),
        list(dict.fromkeys(orders[0])),
    ]


def test_a_frozen_end_is_neither_summed_nor_updated() -> None:
    program = executable(programs.two_tower(3, backward=Backward.NONE), ties=((0, 1, 2),))
    check(program)
    tied = {(a.kind, a.stage) for a in program.actions if a.edge == 0 and not a.kind.is_wire}
    assert tied == {(kind, stage) for kind in (Kind.REDUCE, Kind.UPDATE) for stage in (1, 2)}


def test_offload_and_experts_stay_as_they_are() -> None:
    plain = Shape(devices=2, microbatches=4)
    program = REGISTRY["1f1b"].program(plain)
    away = offload(simulate(program))
    assert any(lane.stream is Stream.OFFLOAD for lane in away.lanes)
    for lowered in (away, experts(split(program), layers=2)):
        walked = executable(lowered, ties=((0, 1),), norms=((0, 1),))
        check(walked)
        for lane, actions in lowered.contents().items():
            kept = walked.contents()[lane]
            assert kept[: len(actions)] == actions


# asynchronous


@each_asynchronous
@pytest.mark.parametrize("has_ties", [False, True], ids=["apart", "tied"])
def test_a_run_of_any_length_is_that_of_a_longer_one_ended(
    program: Program, *, has_ties: bool
) -> None:
    """Folding moves updates as they move in the run written out, wherever that ends."""
    ties, norms = shared(program)
    walked = unwired(executable(program, ties=ties if has_ties else (), norms=norms))
    assert walked.period is not None
    written = unwired(executable(program.unrolled(30), ties=ties if has_ties else (), norms=norms))
    for repeats in (1, 2, 5):
        run = walked.unrolled(repeats)
        is_run = step_of(written) < run.steps
        assert set(run.lanes) == set(written.lanes)
        for index, lane in enumerate(written.lanes):
            kept = written.actions.take(np.flatnonzero(is_run & (written.lane_of == index)))
            assert run.contents()[lane] == kept


@each_asynchronous
def test_sums_stand_in_the_body_of_the_updates_that_read_them_or_before(program: Program) -> None:
    """So that a device that walks body after body never waits for a sum of the next one."""
    walked = unwired(executable(program, ties=shared(program)[0]))
    assert walked.period is not None
    position = np.arange(len(walked)) - walked.bounds[walked.lane_of]
    cuts = np.array([walked.period.prologue, np.add(walked.period.prologue, walked.period.body)])
    chunk = (position >= cuts[0][walked.lane_of]).astype(int) + (
        position >= cuts[1][walked.lane_of]
    )
    consumer, producer = walked.dependencies.consumer, walked.dependencies.producer
    reads_sum = (walked.actions.kind[producer] == Kind.REDUCE) & (
        walked.actions.kind[consumer] == Kind.UPDATE
    )
    here = walked.device_of[producer] == walked.device_of[consumer]
    assert reads_sum.any()
    assert (chunk[producer] <= chunk[consumer])[reads_sum & here].all()


def test_an_update_that_waits_for_a_norm_stands_before_the_first_use_of_its_version() -> None:
    program = executable(programs.periodic_two_bw(), norms=((0, 1),))
    check(program)
    assert program.period is not None
    lane = words(program.unrolled(2), Lane(1))
    assert lane == (
        "1F0@0 1B0@0 1F1@0 1B1@0 1F2@0 1B2@0 1F3@0 1B3@0 1U@0"
        " 1F4@1 1B4@1 1F5@1 1B5@1 1U@1 1F6@2 1B6@2 1F7@2 1B7@2 1U@2 1U@3"
    )


def test_an_update_that_waits_for_nobody_stays() -> None:
    program = executable(programs.periodic_two_bw(), norms=((0,), (1,)))
    assert unwired(program) == replace(programs.periodic_two_bw(), norms=((0,), (1,)))


def test_the_sum_over_copies_is_waited_for_where_its_version_is_first_used() -> None:
    program = executable(from_text(TWO_PIPES))
    check(program)
    assert words(program, Lane(0)) == (
        "0F0@0 1F1@0 1B1@0 0B0@0 0F2@0 1F3@0 1B3@0 0B2@0 0U@0"
        " 0F4@1 1U@0#1 1F5@1 1B5@1 0B4@1 0U@1 1U@1#1 0U@2 1U@2#1"
    )
    assert words(program, Lane(0, Stream.REDUCE)) == (
        "reduce:1@0#1 reduce:0@0 reduce:1@1#1 reduce:0@1 reduce:1@2#1 reduce:0@2"
    )


def test_only_the_tied_weight_of_a_stage_waits_for_its_other_end() -> None:
    program = executable(programs.periodic_two_bw(), ties=((0, 1),))
    assert words(program.unrolled(1), Lane(1)).startswith(
        "1F0@0 1B0@0 1F1@0 1B1@0 1U@0 1F2@0 1B2@0 1F3@0 1B3@0 1U@1 1U@0~0 1F4@1"
    )


def test_a_tied_weight_is_of_the_version_that_its_home_uses() -> None:
    """pipedream, 2 devices: stage 0 is one update stale, stage 1 is not."""
    program = executable(
        REGISTRY["pipedream"].program(Shape(devices=2, microbatches=1, updates=8)), ties=((0, 1),)
    )
    check(program)
    run = program.unrolled()
    for row in np.flatnonzero((run.actions.kind == Kind.F) & (run.actions.stage == 1)).tolist():
        reads = {token(run, producer) for producer, _ in run.dependencies.read_by(row)}
        microbatch = int(run.actions.microbatch[row])
        assert (f"1U@{microbatch - 2}~0" in reads) == (microbatch >= 2)
        assert (f"1U@{microbatch - 1}" in reads) == (microbatch >= 1)


def test_a_run_too_short_to_repeat_is_written_out() -> None:
    program = executable(programs.two_bw(3), ties=((0, 1),), norms=((0, 1),))
    check(program)
    assert program.period is None
    assert words(program, Lane(1)).endswith("1U@1 1U@1~0 1U@2 1U@2~0")


def test_updates_of_one_stage_follow_each_other() -> None:
    for program in asynchronous():
        run = executable(program, norms=equally_stale(program)).unrolled()
        for stage in range(run.stages):
            mine = (run.actions.kind == Kind.UPDATE) & (run.actions.stage == stage)
            mine &= run.actions.pipe == 0
            assert run.actions.version[mine].tolist() == list(range(run.steps))


@pytest.mark.parametrize("name", ["pipedream", "wpipe"])
def test_a_norm_that_would_need_later_data_is_reported(name: str) -> None:
    """Stages that use fresher weights cannot wait for the gradients of staler ones."""
    schedule = REGISTRY[name]
    shape = Shape(
        devices=3, microbatches=6, stages_per_device=schedule.stages_per_device[0], updates=9
    )
    program = schedule.program(shape)
    with pytest.raises(ProgramError, match=r"[Mm]ove"):
        check(executable(program, norms=(tuple(range(program.stages)),)))


def test_sums_of_a_run_follow_its_steps() -> None:
    run = executable(programs.periodic_two_bw(), ties=((0, 1),)).unrolled(4)
    for index, lane in enumerate(run.lanes):
        if lane.stream is Stream.REDUCE:
            versions: Actions = run.lane(index)
            assert all(a + 1 == b for a, b in pairwise(versions.version.tolist()))

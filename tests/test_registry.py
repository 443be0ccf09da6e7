"""One suite over the whole registry: what holds for every schedule, whoever wrote it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verify.mutations import mutations
from weft.cost import Share
from weft.ir.program import Program
from weft.lower import split, updates, wires
from weft.notation import from_json, from_text, to_json, to_text
from weft.schedules import REGISTRY, Schedule, Shape
from weft.simulate import simulate
from weft.verify import verify

MUTATIONS_TRIED = 60
CYCLIC = ("interleaved-1f1b", "ragged")  # a variant that shows why others refuse such shapes

each_schedule = pytest.mark.parametrize("schedule", list(REGISTRY), ids=lambda s: s.name)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[Schedule, Shape]:
    schedule = draw(st.sampled_from(list(REGISTRY)))
    least, most = schedule.stages_per_device
    return schedule, Shape(
        devices=draw(st.integers(1, 9)),
        microbatches=draw(st.integers(1, 25)),
        stages_per_device=draw(st.integers(least, most or 4) | st.integers(1, 4)),
        pipes=draw(st.integers(1, 3) if schedule.takes_pipes else st.just(1)),
        updates=draw(st.integers(1, 6)) if schedule.is_asynchronous else 4,
        round=draw(st.integers(0, 9)) if schedule.takes_round else 0,
        variant=draw(st.sampled_from(["", *schedule.variants, "unheard-of"])),
    )


def lowered(schedule: Schedule, program: Program) -> Program:
    """With wires, and with updates unless the schedule places them itself."""
    return wires(program if schedule.is_asynchronous else updates(program))


def small(schedule: Schedule, variant: str) -> Program:
    """A small program of a schedule: two devices, or four where two have nothing to overlap."""
    least, most = schedule.stages_per_device
    stages = least if most else 2
    shape = Shape(devices=2, microbatches=4, stages_per_device=stages, variant=variant, updates=3)
    return schedule.program(shape).unrolled()


@settings(deadline=None, max_examples=300)
@given(case=shapes())
def test_a_shape_runs_or_is_refused_with_a_reason(case: tuple[Schedule, Shape]) -> None:
    schedule, shape = case
    refusal = schedule.accepts(shape)
    if refusal is not None:
        assert refusal.reason
        assert schedule.accepts(refusal.nearest) is None
        assert shape.changes_to(refusal.nearest)
        return
    program = schedule.program(shape)
    report = verify(program)
    if (schedule.name, shape.variant) == CYCLIC and not report.is_valid:
        assert {finding.rule for finding in report.findings} == {"deadlock"}
        return
    assert report.is_valid, str(report)
    timeline = simulate(program.unrolled())
    assert 0 <= timeline.bubble.span <= timeline.bubble.wall + 1e-12 < 1


@settings(deadline=None, max_examples=100)
@given(case=shapes(), is_lowered=st.booleans())
def test_text_and_json_come_back(case: tuple[Schedule, Shape], *, is_lowered: bool) -> None:
    schedule, shape = case
    if schedule.accepts(shape) is not None:
        return
    program = schedule.program(shape)
    program = lowered(schedule, program) if is_lowered else program
    assert from_text(to_text(program)) == program
    assert from_json(to_json(program)) == program


@settings(deadline=None, max_examples=60)
@given(case=shapes(), latency=st.sampled_from([0.0, 0.125, 1.0]))
def test_lowering_changes_no_time(case: tuple[Schedule, Shape], latency: float) -> None:
    schedule, shape = case
    if schedule.accepts(shape) is not None or not verify(schedule.program(shape)).is_valid:
        return
    program = schedule.program(shape).unrolled()
    cost = Share(latency=latency).cost(program)
    plain, wired = simulate(program, cost), simulate(lowered(schedule, program), cost)
    assert wired.makespan == pytest.approx(plain.makespan)
    assert wired.peak_activations == pytest.approx(plain.peak_activations)
    assert wired.program.messages == program.messages
    assert verify(wired.program).is_valid


@each_schedule
def test_a_split_backward_is_no_slower(schedule: Schedule) -> None:
    program = small(schedule, "")
    assert simulate(split(program)).makespan <= simulate(program).makespan


@each_schedule
@pytest.mark.parametrize("is_lowered", [False, True], ids=["plain", "lowered"])
def test_no_mutation_passes(schedule: Schedule, *, is_lowered: bool) -> None:
    """Swap, drop, duplicate, retarget, move, cross: each schedule, each variant, a fair sample."""
    for variant in ("", *schedule.variants):
        program = small(schedule, variant)
        program = lowered(schedule, program) if is_lowered else program
        assert verify(program).is_valid
        every = list(mutations(program))
        some = random.Random(program.digest).sample(every, min(MUTATIONS_TRIED, len(every)))
        passed = [change.name for change in some if verify(change.make()).is_valid]
        assert passed == []


@each_schedule
def test_every_schedule_says_what_it_is(schedule: Schedule) -> None:
    assert schedule.summary
    assert schedule.paper
    assert schedule.claims.formula
    assert schedule.claims.peak_formula


def test_depth_of_channels_at_4_by_8() -> None:
    """With blocking sends only gpipe (and naive) survive rendezvous; a depth of 2 suffices."""
    depths = {}
    for schedule in REGISTRY:
        if schedule.is_asynchronous:
            continue
        least, most = schedule.stages_per_device
        shape = Shape(devices=4, microbatches=8, stages_per_device=least if most else 2)
        depths[schedule.name] = verify(schedule.program(shape)).channel_depth
    assert {name for name, depth in depths.items() if depth == 0} == {"naive", "gpipe"}
    assert {name for name, depth in depths.items() if depth == 2} == {
        "looped-bfs",
        "grouped-gpipe",
        "interleaved-zb1p",
    }
    assert max(depth or 0 for depth in depths.values()) == 2

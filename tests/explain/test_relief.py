"""Relief: what makes a program fit, and that advice never names what does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.cost import Link, Share
from weft.explain import (
    Relief,
    all_tried,
    candidates,
    explain,
    in_words,
    is_fitting,
    reliefs,
    relieved,
)
from weft.explain.options import Option, helpful
from weft.ir.program import Program
from weft.schedules import REGISTRY, Shape, gpipe, one_f_one_b, pipedream
from weft.simulate import simulate
from weft.timeline import Timeline
from weft.verify import verify

SHAPE = Shape(devices=4, microbatches=8)


def within(program: Program, capacity: float) -> Timeline:
    """Timed on devices with so much memory; an input is an eighth of what is saved, and the link
    to the host takes as long for that as a forward.
    """
    program = program.unrolled() if program.period else program
    cost = Share().cost(program)
    inputs = tuple(saved / 8 for saved in cost.memory.saved)
    memory = replace(cost.memory, inputs=inputs, capacity=capacity)
    network = replace(cost.network, host=Link(bandwidth=1.0))
    return simulate(program, replace(cost, memory=memory, network=network))


def options(capacity: float) -> list[Option]:
    return [
        option
        for candidate in candidates(one_f_one_b, SHAPE)
        for option in all_tried(candidate, lambda program: within(program, capacity))
    ]


@pytest.mark.parametrize("schedule", list(REGISTRY), ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("relief", list(Relief), ids=lambda relief: relief.name)
def test_every_schedule_with_relief_is_valid_and_no_fuller(
    schedule: object, relief: Relief
) -> None:
    timeline = within(REGISTRY[schedule.name](devices=4, microbatches=8), float("inf"))  # type: ignore[attr-defined]
    program = relieved(timeline, relief)
    assert verify(program).is_valid
    again = simulate(program, timeline.cost)
    if relief is not Relief.RECOMPUTE and not relief.is_recomputing:
        assert again.makespan == pytest.approx(timeline.makespan)
        assert max(again.memory.peaks) <= max(timeline.memory.peaks)


def test_what_fits_and_what_has_no_limit_gets_no_relief() -> None:
    program = gpipe(devices=4, microbatches=8)
    assert list(reliefs(within(program, float("inf")))) == []
    assert list(reliefs(within(program, 9.0))) == []
    assert is_fitting(within(program, float("inf"))) is None
    assert is_fitting(within(program, 9.0)) is True
    assert is_fitting(within(program, 8.9)) is False


def test_both_come_only_where_neither_suffices() -> None:
    program = gpipe(devices=4, microbatches=8)
    found = {
        memory: [relief for relief, _ in reliefs(within(program, memory))]
        for memory in (8.0, 3.5, 2.9, 1.9)
    }
    assert found == {
        8.0: [Relief.OFFLOAD, Relief.RECOMPUTE],
        3.5: [Relief.RECOMPUTE],
        2.9: [Relief.BOTH],
        1.9: [],
    }


def test_what_is_relieved_already_is_not_again() -> None:
    timeline = within(gpipe(devices=4, microbatches=8, variant="recompute"), 2.5)
    assert Relief.RECOMPUTE not in [relief for relief, _ in reliefs(timeline)]


@settings(deadline=None, max_examples=25)
@given(capacity=st.floats(1.5, 12.0))
def test_advice_names_only_what_fits(capacity: float) -> None:
    """At any memory: every recommendation fits; where something fits, there is one."""
    timeline = within(one_f_one_b.program(SHAPE), capacity)
    tried = options(capacity)
    best = helpful(timeline, tried)
    assert all(option.is_fitting and option.memory <= capacity for option in best.values())
    fitting = [option for option in tried if option.is_fitting]
    if is_fitting(timeline) is False:
        assert bool(best) == bool(fitting)
        if fitting:
            fastest = min(option.seconds for option in fitting)
            assert best["fastest that fits"].seconds == pytest.approx(fastest)


def test_what_does_not_fit_is_reported_and_never_twice_the_microbatches() -> None:
    timeline = within(one_f_one_b.program(SHAPE), 2.5)
    explanation = explain(timeline, options=options(2.5))
    words = [line for section in in_words(explanation) for line in section.lines]
    assert any(line.startswith("As it is, it does not fit. What would help") for line in words)
    rows = {row[0]: row[-1] for section in in_words(explanation) for row in section.rows}
    assert rows["as it is"] == "more than a device has"


def test_a_run_that_is_stale_and_does_not_fit_says_both() -> None:
    timeline = within(pipedream(devices=4, microbatches=4), 3.0)
    rows = {row[0]: row[-1] for section in in_words(explain(timeline)) for row in section.rows}
    assert rows["as it is"] == "weights up to 3 updates old, more than a device has"

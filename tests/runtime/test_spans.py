"""Recordings know what closed the gradients of each stage, by the action that it followed."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from tests.runtime.models import WIDTH, layers, squared
from weft.errors import InputError
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.runtime import Pipeline, split
from weft.runtime.lane.walk import blamed
from weft.runtime.profile.parts import actions_of
from weft.runtime.result import Span
from weft.schedules import chimera, one_f_one_b, pipedream_2bw, zb_h1

MICROBATCHES = 4
BATCH = torch.ones(MICROBATCHES, WIDTH)


def pipeline_of(program: Program) -> Pipeline:
    return Pipeline(
        split(layers(program.stages), stages=program.stages),
        program,
        loss=squared,
        optimizer=lambda named: torch.optim.SGD([weight for _, weight in named], lr=0.1),
    )


def closings(spans: Iterable[Span]) -> list[Span]:
    return [span for span in spans if span.is_closing]


@pytest.mark.parametrize("make", [one_f_one_b, zb_h1, chimera])
def test_gradients_are_closed_once_in_a_step_after_the_last_of_their_stage(make: object) -> None:
    program = make(devices=2, microbatches=MICROBATCHES)  # type: ignore[operator]
    pipeline = pipeline_of(program)
    for step in range(2):
        spans = [*pipeline.step(BATCH, BATCH).spans()]
        closed = closings(spans)
        places = {(span.action.pipe, span.action.stage) for span in closed}
        assert places == set(pipeline.modules)
        assert len(places) == len(closed)
        assert {span.update for span in spans} == {step}
        for closing in closed:
            assert closing.action == _last_gradient(spans, closing).action


def _last_gradient(spans: Iterable[Span], closing: Span) -> Span:
    """Of the stage and pipe of a closing, in the order in which they ran."""
    place = closing.action.pipe, closing.action.stage
    *_, last = (
        span
        for span in spans
        if not span.is_closing
        and span.action.kind in (Kind.B, Kind.W)
        and (span.action.pipe, span.action.stage) == place
    )
    return last


def test_a_flight_has_the_closings_of_all_of_its_updates() -> None:
    pipeline = pipeline_of(pipedream_2bw(devices=2, microbatches=MICROBATCHES))
    for first, updates in ((0, 3), (3, 9)):
        for _ in range(updates):
            result = pipeline.step(BATCH, BATCH)
        with pytest.raises(InputError, match="spread over several calls"):
            result.spans()
        spans = [*pipeline.drain().spans()]
        expected = {(stage, first + update) for stage in (0, 1) for update in range(updates)}
        assert {(span.action.stage, span.update) for span in closings(spans)} == expected
        assert len(closings(spans)) == len(expected)
        made = [span for span in spans if span.action.kind is Kind.UPDATE]
        assert {(span.action.stage, span.update) for span in made} == expected


def test_who_fails_after_an_action_is_named_by_it() -> None:
    program = one_f_one_b(devices=2, microbatches=2)
    last = len(program) - 1
    assert str(blamed(program, last, ValueError("x"))) == "device 1 failed at 1B1: x"
    assert str(blamed(program, ~last, ValueError("x"))) == "device 1 failed after 1B1: x"
    assert str(blamed(program, ~0, ValueError("x"))) == "device 0 failed after 0F0: x"


def test_actions_of_several_laps_are_timed_one_by_one() -> None:
    """Microbatches of an asynchronous program have the numbers of earlier ones."""
    program = pipedream_2bw(devices=2, microbatches=MICROBATCHES)
    pipeline = pipeline_of(program)
    updates = 3 * pipeline._parts.training._ring.updates
    for _ in range(updates):
        pipeline.step(BATCH, BATCH)
    found = actions_of(pipeline.drain().spans())
    assert {len(one.seconds["forward"]) for one in found.values()} == {updates * MICROBATCHES}

"""The verdict is reality: what is accepted trains to the bit, what is refused would not have."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime import exactness, verdicts
from tests.runtime.asynchrony import Case, differences
from tests.runtime.models import MODELS, adam, batches, squared
from tests.runtime.test_branches import modules
from tests.verify import programs
from weft.errors import InputError, WeftError
from weft.ir.graph import Backward, Graph, Stage
from weft.ir.kinds import Kind
from weft.ir.lanes import Period
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.lower import updates
from weft.runtime import Pipeline, Reference
from weft.runtime import reference as versions
from weft.runtime.suit import check_suits
from weft.verify import verify

FEW = 60  # programs of each family; all seeds are as good


def outcomes(
    make: Callable[[Random, Any], tuple[Program, verdicts.Outcome]], bases: list[Program]
) -> tuple[Counter[str], list[str]]:
    """How often each verdict was given, and where it was wrong."""
    found, wrong = Counter[str](), []
    for seed in range(FEW):
        _, outcome = make(Random(seed), bases)
        found[outcome.verdict] += 1
        if outcome.wrong:
            wrong.append(f"{seed}: {outcome.verdict}, {outcome.wrong}")
    return found, wrong


def test_of_changed_programs_those_that_are_accepted_are_exact() -> None:
    found, wrong = outcomes(verdicts.synchronous, verdicts.synchronous_bases())
    assert wrong == []
    assert found["accepted"] > FEW / 4, "so that something is compared"
    assert found.total() - found["accepted"] > FEW / 4, "so that something is refused"


def test_of_asynchronous_programs_those_that_are_accepted_are_exact() -> None:
    found, wrong = outcomes(verdicts.asynchronous, verdicts.asynchronous_bases())
    assert wrong == []
    assert found["accepted"] > FEW / 10
    assert found.total() - found["accepted"] > FEW / 4


# what the rules of programs that repeat keep from happening


def nevertheless(program: Program, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What differs from what a program says if it is run without asking whether it can be."""
    monkeypatch.setattr("weft.runtime.task.check_suits", lambda *_: None)
    monkeypatch.setattr("weft.runtime.task.check", verdicts.Unchecked)
    stages = MODELS["layers"].stages(program.stages)
    copies = copy.deepcopy(stages)
    pipeline = Pipeline(stages, program, loss=squared, optimizer=adam, seed=3)
    reference = Reference(copies, program, loss=squared, optimizer=adam, seed=3)
    found = []
    for update, (batch, target) in enumerate(batches(program.microbatches * 3 - 1, 5)):
        if not torch.equal(pipeline.step(batch, target).loss, reference.step(batch, target)):
            found.append(f"the loss of update {update}")
    pipeline.drain()
    return [*found, *verdicts.different(pipeline, copies)]


DEADLOCKED = {
    "the data of the next step first": KeyError,  # of a loss that is not there when its step ends
    "a gradient that waits for the next step": WeftError,
}
ENDLESS = "a body that runs nothing"  # would be looked through indefinitely
JOINING = "the gradient of a step that joins the update before"  # where they look the same
OTHERWISE = [n for n in programs.REPEATING if n not in DEADLOCKED and n not in (ENDLESS, JOINING)]


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_repetition_that_a_rule_refuses_would_train_otherwise(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not verify(programs.REPEATING[name]).is_valid
    assert nevertheless(programs.REPEATING[name], monkeypatch)


def test_an_update_takes_the_gradients_of_its_own_step_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also of a program that relies on it, which is refused: not everything runs programs so."""
    assert not verify(programs.REPEATING[JOINING]).is_valid
    assert nevertheless(programs.REPEATING[JOINING], monkeypatch) == []


@pytest.mark.parametrize("name", DEADLOCKED)
def test_a_repetition_that_a_rule_refuses_would_deadlock(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not verify(programs.REPEATING[name]).is_valid
    with pytest.raises(DEADLOCKED[name]):
        nevertheless(programs.REPEATING[name], monkeypatch)


def test_a_valid_asynchronous_program_is_exact_without_asking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that the comparison above is one."""
    assert nevertheless(programs.periodic_two_bw(), monkeypatch) == []


# what the runtime would run otherwise than a program says


def refusal(program: Program, stages: list[nn.Module] | None = None) -> str:
    assert verify(program).is_valid
    with pytest.raises(InputError) as caught:
        check_suits(stages or MODELS["layers"].stages(program.stages), program)
    return str(caught.value)


def test_several_steps_of_a_synchronous_program_are_refused() -> None:
    assert "takes one batch a step" in refusal(programs.gpipe(2, 2).unrolled(2))
    assert "too short to repeat" in refusal(updates(programs.gpipe(2, 2)).unrolled(2))


def test_weights_that_learn_in_a_frozen_stage_are_refused() -> None:
    for backward in (Backward.NONE, Backward.INPUT):
        program = programs.two_tower(3, backward=backward)
        stages = modules(program.graph)
        check_suits(stages, program)
        stages[0].requires_grad_(True)
        assert f"stage 0 is frozen in two-tower (backward={backward.value})" in refusal(
            program, stages
        )


def test_a_gradient_that_a_frozen_stage_would_lose_is_refused() -> None:
    """Stage 0 learns by stage 2 alone, although stage 1 reads it as well."""
    graph = Graph((Stage(), Stage(backward=Backward.NONE), Stage()), ((0, 1), (0, 2), (1, 2)))
    program = programs.program("lost", ["0F0 0B0", "1F0", "2F0 2B0"], 1, graph=graph)
    assert "give that one backward=input" in refusal(program, modules(graph))


def test_a_device_without_work_does_nothing() -> None:
    """The second pipe, of which device 2 holds a stage, has no microbatch."""
    placement = Placement(((0, 1), (2, 1)))
    program = programs.program(
        "one way", ["0F0 0B0", "1F0 1B0"], 1, placement=placement, pipe_of=(0,)
    )
    for variant in (program, updates(program)):
        stages = MODELS["layers"].stages(2)
        assert exactness.differences(stages, variant, batches(6, 2)) == []


def test_a_repetition_that_never_updates_or_names_no_versions_is_refused() -> None:
    program = programs.repeating("0F0@0 0B0@0 0U@0 [0F1@1 0B1@1 0U@1]")
    unnamed = program.actions.replace(version=-1).take(program.actions.kind != Kind.UPDATE)
    period = Period((2,), (2,), microbatches=1)
    never = program.with_lanes({program.lanes[0]: unnamed}, period=period)
    assert "never updates" in refusal(never)
    is_update = program.actions.kind == Kind.UPDATE
    some = program.actions.replace(version=program.actions.version * is_update - ~is_update)
    assert "Name it (0F0@0" in refusal(program.with_lanes({program.lanes[0]: some}))


def test_a_repetition_recomputes_a_microbatch_in_every_step_or_in_none() -> None:
    program = programs.repeating("0F0@0 0B0@0 0U@0 [0F1@1 0R1@1 0B1@1 0U@1]")
    assert "recompute all of them or none" in refusal(program)


# asynchronous programs that the literature has not


def ahead(by: int, *, is_stashing: bool) -> Program:
    """Pipedream on two devices with that many more microbatches in flight."""
    return programs.repeating(
        *(
            _ahead(device, by + 1 - device, total=2 * by + 6, is_stashing=is_stashing)
            for device in range(2)
        ),
        is_stashing=is_stashing,
    )


def _ahead(device: int, warmup: int, *, total: int, is_stashing: bool) -> str:
    """F and B in turn; all but the last few of them in the prologue, then a body of one update."""
    first, slots = total - warmup - 2, []
    for turn in range(-warmup, total):
        if turn + warmup < total:
            slots.append(f"{device}F{turn + warmup}@{max(0, turn)}")
        if turn >= 0:
            version = max(0, turn - warmup) if is_stashing else turn
            body = f"{device}B{turn}@{version} {device}U@{turn}"
            slots.append(body if turn != first else f"{body}]")
        if turn == first - 1:
            slots.append("[")
    return " ".join(slots)


@pytest.mark.parametrize("is_stashing", [True, False])
def test_a_long_prologue_is_looked_at_to_its_end(*, is_stashing: bool) -> None:
    for by in (0, 4, 12):
        assert (
            verdicts.trained_apart("layers", ahead(by, is_stashing=is_stashing), updates=2 * by + 9)
            == ""
        )


def test_versions_that_leave_some_out_are_kept_in_between() -> None:
    """Even steps use weights of two updates ago, odd ones the newest."""
    lane = " ".join(
        f"0F{t}@{v} 0B{t}@{v} 0U@{t}" + {3: " [", 5: " ]"}.get(t, "")
        for t in range(8)
        for v in [t if t % 2 else max(0, t - 2)]
    )
    assert verdicts.trained_apart("layers", programs.repeating(lane), updates=9) == ""


def test_a_tied_weight_may_be_many_updates_stale() -> None:
    for devices in (5, 7):
        case = Case("pipedream", "vertical-sync", devices, 1, versions.vertical_sync(devices))
        assert not differences(case, model="tied", updates=3 * devices, drains=(1,))
    case = Case("pipedream", "vertical-sync", 17, 1, versions.vertical_sync(17))
    with pytest.raises(InputError, match=r"16 updates stale: too many"):
        differences(case, model="tied")


def test_a_tied_weight_needs_a_stash() -> None:
    case = Case("naive-async", "", 2, 1, versions.pipedream(2), 0, versions.synchronous())
    with pytest.raises(InputError, match="stashes nothing: the two would use different versions"):
        differences(case, model="tied")


def test_a_norm_over_several_stages_needs_a_stash() -> None:
    """Both stages are one update stale, so that waiting for each other would take no time."""
    lanes = [
        f"{d}F0@0 {d}F1@0 {d}B0@0 {d}U@0 [{d}F2@1 {d}B1@1 {d}U@1] {d}B2@2 {d}U@2" for d in range(2)
    ]
    program = programs.repeating(*lanes, is_stashing=False)
    stages = MODELS["layers"].stages(2)
    for scope in ("global", "group"):
        with pytest.raises(InputError, match="Clip by stage"):
            Pipeline(stages, program, loss=squared, optimizer=adam, clip=0.05, clip_by=scope)
    assert verdicts.trained_apart("layers", program, updates=6, clip=0.05) == ""

"""What only one kind of program could do works for both: synchronous and asynchronous."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.lower.test_executable import TWO_PIPES
from tests.runtime.asynchrony import momentum
from tests.runtime.models import WIDTH, adam, batches, is_same, layers, linear, squared
from tests.runtime.ranks import over_transports
from weft.errors import InputError, ProgramError
from weft.ir.graph import Backward, Graph, Stage
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.lower import executable, recompute
from weft.lower import split as split_backward
from weft.lower.periods import taking
from weft.notation import from_text
from weft.runtime import Pipeline, Reference, Scale, Staleness, split
from weft.runtime.weights.staleness import scoped
from weft.schedules import (
    chimera,
    gpipe,
    one_f_one_b,
    pipedream,
    pipedream_2bw,
    wpipe,
    zb_h1,
)

Steps = Sequence[bool]  # whether each updates


def differences(
    stages: list[nn.Module], program: Program, updates: Steps, **settings: Any
) -> list[str]:
    """Train by the program and by the reference; what is not equal."""
    copies = copy.deepcopy(stages)
    shared = {"loss": squared, "optimizer": momentum, "seed": 3, **settings}
    transport, scope = shared.pop("transport", "auto"), shared.pop("clip_by", None)
    pipeline = Pipeline(stages, program, transport=transport, clip_by=scope, **shared)
    groups = scoped(program, scope) if "clip" in shared or "scale" in shared else None
    reference = Reference(copies, program, groups=groups, **shared)
    found = []
    data = batches(program.microbatches * 3 - 1, len(updates))
    for step, ((batch, target), update) in enumerate(zip(data, updates, strict=True)):
        result = pipeline.step(batch, target, update=update)
        wanted = reference.step(batch, target, update=update)
        if not torch.equal(result.loss, wanted):
            found.append(f"the loss of step {step}")
    if program.period is not None:
        pipeline.drain()
    return found + [
        f"{name} of stage {stage}"
        for (_, stage), module in pipeline.modules.items()
        for name, value in module.state_dict().items()
        if not torch.equal(value, copies[stage].state_dict()[name])
    ]


def slices(program: Program) -> list[nn.Module]:
    return split(layers(program.stages), stages=program.stages)


def asynchronous() -> dict[str, Program]:
    return {
        "pipedream": pipedream(devices=3, microbatches=1, updates=8),
        "vertical-sync": pipedream(devices=3, microbatches=1, updates=8, variant="vertical-sync"),
        "pipedream-2bw": pipedream_2bw(devices=3, microbatches=4, updates=8),
        "wpipe": wpipe(devices=2, microbatches=4, stages_per_device=2, updates=8),
    }


def synchronous() -> dict[str, Program]:
    return {
        "gpipe": gpipe(devices=2, microbatches=4),
        "1f1b": one_f_one_b(devices=3, microbatches=4),
        "zb-h1": zb_h1(devices=3, microbatches=4),
        "chimera": chimera(devices=2, microbatches=4),
    }


ALWAYS = (True,) * 6
EVERY_THIRD = (False, False, True, True, False, True, True)


# what synchronous programs could do


@pytest.mark.parametrize("name", asynchronous())
def test_a_backward_of_an_asynchronous_program_comes_in_two_halves(name: str) -> None:
    program = split_backward(asynchronous()[name])
    for is_clipped in (False, True):
        more = {"clip": 0.05} if is_clipped else {}
        assert differences(slices(program), program, ALWAYS, **more) == []
    again = recompute(program)
    assert differences(slices(program), again, ALWAYS) == []


@pytest.mark.parametrize("name", asynchronous())
def test_gradients_of_an_asynchronous_program_pile_up(name: str) -> None:
    program = asynchronous()[name]
    for more in ({}, {"clip": 0.05}, {"scale": 256.0}):
        assert differences(slices(program), program, EVERY_THIRD, **more) == []


def test_an_asynchronous_program_has_several_pipes() -> None:
    """Lowered first: it does not list its sums itself."""
    program = from_text(TWO_PIPES)
    with pytest.raises(ProgramError, match=r"has no reduction.*lower\.executable"):
        Pipeline(linear(2), program, loss=squared, optimizer=adam)
    for more in ({}, {"clip": 0.05}):
        assert differences(linear(2), executable(program), ALWAYS, **more) == []


def test_an_action_of_an_asynchronous_program_spans_microbatches() -> None:
    two_bw = pipedream_2bw(devices=2, microbatches=4, updates=8)
    program = spanning(two_bw)
    assert (program.actions.span == 2).any()
    assert differences(slices(program), program, ALWAYS, clip=0.05) == []


def spanning(program: Program) -> Program:
    """The first stage's forwards of two microbatches at once, the second right after the first."""
    actions = program.actions
    is_forward = (actions.kind == Kind.F) & (actions.stage == 0)
    is_odd = is_forward & (actions.microbatch % 2 == 1)
    is_even = is_forward & (actions.microbatch % 2 == 0)
    doubled = replace(program, actions=actions.replace(span=np.where(is_even, 2, actions.span)))
    return taking(doubled, ~is_odd, range(len(program.lanes)))


def test_a_frozen_stage_of_an_asynchronous_program_stays_as_it_is() -> None:
    for frozen, backward in ((0, Backward.NONE), (1, Backward.INPUT)):
        whole = pipedream_2bw(devices=3, microbatches=4, updates=8)
        program = freezing(whole, frozen, backward)
        stages = slices(program)
        stages[frozen].requires_grad_(False)
        before = copy.deepcopy(stages[frozen].state_dict())
        assert differences(stages, program, ALWAYS, clip=0.05) == []
        after = stages[frozen].state_dict()
        assert all(is_same(after[name], value) for name, value in before.items())


def freezing(program: Program, stage: int, backward: Backward) -> Program:
    """The program without what a frozen stage does not do, nor versions of what never changes."""
    stages = [Stage(backward=backward if i == stage else Backward.FULL) for i in range(3)]
    actions = program.actions
    kinds = (Kind.UPDATE, Kind.B) if backward is Backward.NONE else (Kind.UPDATE,)
    dropped = (actions.stage == stage) & np.isin(actions.kind, kinds)
    taken = taking(program, ~dropped, range(len(program.lanes)))
    actions = taken.actions
    version = np.where(actions.stage == stage, -1, actions.version)
    return replace(
        taken,
        graph=Graph(tuple(stages), program.graph.edges),
        actions=actions.replace(version=version),
    )


# what asynchronous programs could do


@pytest.mark.parametrize("name", synchronous())
def test_a_synchronous_program_computes_in_half_precision(name: str) -> None:
    program = synchronous()[name]
    stages = slices(program)
    assert differences(stages, program, ALWAYS, precision=torch.bfloat16, clip=0.5) == []
    half = {"precision": torch.float16, "scale": Scale(2.0**22, interval=2)}
    assert differences(slices(program), program, (True,) * 12, **half) == []


@pytest.mark.parametrize("name", synchronous())
def test_losses_of_a_synchronous_program_are_scaled(name: str) -> None:
    program = synchronous()[name]
    for updates in (ALWAYS, EVERY_THIRD):
        assert differences(slices(program), program, updates, scale=256.0, clip=0.05) == []
        changing = Scale(2.0**4, interval=1)
        assert differences(slices(program), program, updates, scale=changing) == []


def test_a_synchronous_program_is_clipped_stage_by_stage() -> None:
    for program in synchronous().values():
        for scope in ("stage", "group", "global"):
            more = {"clip": 0.02, "clip_by": scope}
            assert differences(slices(program), program, ALWAYS, **more) == []


# with several ranks


def train(transport: Any) -> list[str]:
    """In each rank."""
    two_bw = pipedream_2bw(devices=2, microbatches=4, updates=8)
    f1b1 = one_f_one_b(devices=2, microbatches=4)
    cases: list[tuple[Program, Steps, dict[str, Any]]] = [
        (split_backward(two_bw), ALWAYS, {"clip": 0.05}),
        (two_bw, EVERY_THIRD, {"clip": 0.05}),
        (f1b1, ALWAYS, {"precision": torch.bfloat16, "scale": Scale(2.0**4, interval=1)}),
        (chimera(devices=2, microbatches=4), EVERY_THIRD, {"scale": 256.0, "clip_by": "stage"}),
    ]
    return [
        f"{program.name}: {wrong}"
        for program, updates, more in cases
        for wrong in differences(slices(program), program, updates, transport=transport, **more)
    ]


def test_all_of_it_on_ranks() -> None:
    assert over_transports(2, train) == [[[]] * 2] * 2


# what the method itself cannot do


def test_what_a_method_cannot_do_is_refused_with_the_reason() -> None:
    program = one_f_one_b(devices=2, microbatches=2)
    with pytest.raises(InputError, match="never stale"):
        Pipeline(linear(2), program, loss=squared, staleness=Staleness(predict=True))
    endless = pipedream_2bw(devices=2, microbatches=2, updates=8)
    with pytest.raises(InputError, match="updates by itself and needs an optimizer"):
        Pipeline([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)], endless, loss=squared)
    pipeline = Pipeline(linear(2), program, loss=squared, optimizer=adam)
    with pytest.raises(InputError, match="nothing is in flight"):
        pipeline.drain()

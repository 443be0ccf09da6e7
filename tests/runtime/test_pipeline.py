"""What a step leaves alone, what it refuses, and what it records."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.runtime.models import (
    WIDTH,
    Faulty,
    batches,
    is_same,
    layers,
    linear,
    plain_descent,
    squared,
)
from weft.errors import InputError, ProgramError, WeftError
from weft.ir.actions import Action
from weft.ir.kinds import Kind
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.lower import executable
from weft.runtime import Pipeline, Reference, split
from weft.runtime.stage.randomness import Draw
from weft.runtime.stage.role import Role
from weft.runtime.stage.stage import Stage
from weft.runtime.stage.values import Value
from weft.runtime.weights.versions import Stash
from weft.schedules import gpipe, one_f_one_b


def test_the_global_random_state_is_left_alone() -> None:
    pipeline = Pipeline(split(layers(2), stages=2), gpipe(devices=2, microbatches=4), loss=squared)
    ((batch, target),) = batches(8, 1)
    before = torch.get_rng_state()
    pipeline.step(batch, target)
    assert torch.equal(before, torch.get_rng_state())


def test_input_gradients_leave_linear_weights_untouched() -> None:
    layer = nn.Linear(WIDTH, WIDTH)
    stage = Stage(layer, Draw(), Role(index=0, is_split=True))
    value, gradient = torch.randn(3, WIDTH), torch.randn(3, WIDTH)
    stage.forward(0, [Value.of(value, "")], is_divided=True)
    (passed,) = stage.input_grad(0, [gradient])
    assert layer.weight.grad is None
    assert layer.bias.grad is None
    assert is_same(passed, gradient @ layer.weight)
    stage.weight_grad(0)
    assert is_same(layer.weight.grad, gradient.t() @ value)
    assert stage.in_flight == 0


def test_a_deferred_layer_without_bias_on_plain_data() -> None:
    """Nothing in front of it wants a gradient, and its own is deferred: it still gets one."""
    layer = nn.Linear(WIDTH, WIDTH, bias=False)
    stage = Stage(layer, Draw(), Role(index=0, is_first=True, is_split=True))
    value = torch.randn(3, WIDTH)
    stage.forward(0, [Value.of(value, "")], is_divided=True)
    assert stage.input_grad(0, [torch.ones(3, WIDTH)]) == (None,)
    stage.weight_grad(0)
    assert is_same(layer.weight.grad, torch.ones(3, WIDTH).t() @ value)


@pytest.mark.parametrize("rows", [(5,), (4, 7), (2, 3, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_deferred_gradients_are_the_fused_ones(rows: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    fused = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 8)).to(dtype)
    deferred = copy.deepcopy(fused)
    value, gradient = torch.randn(*rows, 16, dtype=dtype), torch.randn(*rows, 8, dtype=dtype)
    for module, is_split in ((fused, False), (deferred, True)):
        stage = Stage(module, Draw(), Role(index=0, is_split=is_split))
        stage.forward(0, [Value.of(value, "")], is_divided=is_split)
        stage.input_grad(0, [gradient])
        stage.weight_grad(0)
    for mine, theirs in zip(deferred.parameters(), fused.parameters(), strict=True):
        assert is_same(mine.grad, theirs.grad)


def test_halves_of_a_backward_with_versions() -> None:
    """They give what the whole gives, and let go of the version that they used."""
    found = []
    for is_split in (False, True):
        torch.manual_seed(0)
        first = nn.Linear(WIDTH, WIDTH)
        module = nn.Sequential(first, nn.GELU(), nn.Linear(WIDTH, WIDTH))
        first.weight.register_hook(lambda grad: grad * 2)  # type: ignore[no-untyped-call]
        stash = Stash(module.named_parameters(), 2)
        stage = Stage(module, Draw(), Role(index=0, is_split=is_split, stashes=[stash]))
        value = Value.of(torch.randn(3, WIDTH), "")
        stage.forward(0, [value], versions=(0,), is_divided=is_split)
        stash.update(lambda: None)
        gradients = [torch.ones(3, WIDTH)]
        if is_split:
            (passed,) = stage.input_grad(0, gradients)
            assert first.weight.grad is None
            stage.weight_grad(0)
        else:
            (passed,) = stage.backward(0, gradients)
        stash.update(lambda: None)  # writes over the version that was used
        found.append([passed, *(weight.grad for weight in module.parameters())])
    for one, other in zip(*found, strict=True):
        assert is_same(one, other)


def test_a_step_is_recorded() -> None:
    program = one_f_one_b(devices=2, microbatches=4)
    pipeline = Pipeline(split(layers(2), stages=2), program, loss=squared)
    ((batch, target),) = batches(8, 1)
    timeline = pipeline.step(batch, target).timeline
    assert timeline.is_measured
    assert timeline.program == pipeline.program == executable(program, is_updating=False)
    program = pipeline.program
    assert (timeline.end >= timeline.start).all()
    for consumer, producer in zip(
        program.dependencies.consumer, program.dependencies.producer, strict=True
    ):
        assert timeline.start[consumer] >= timeline.end[producer]


def test_what_cannot_run_is_refused_before_anything_runs() -> None:
    program = one_f_one_b(devices=2, microbatches=4)
    modules = split(layers(2), stages=2)
    with pytest.raises(InputError, match="3 modules for the 2 stages"):
        Pipeline([*modules, nn.ReLU()], program, loss=squared)
    broken = Program.build(
        "broken",
        Placement.straight(1),
        [[Action(0, Kind.B, 0), Action(0, Kind.F, 0)]],
        microbatches=1,
    )
    with pytest.raises(ProgramError, match="before"):
        Pipeline(modules[:1], broken, loss=squared)
    pipeline = Pipeline(modules, program, loss=squared)
    with pytest.raises(InputError, match="cannot be cut"):
        pipeline.step(torch.zeros(3, WIDTH), torch.zeros(3, WIDTH))
    with pytest.raises(InputError, match=r"stage 0 does not fit .* shape \[\[2, 5\]\]"):
        pipeline.step(torch.zeros(8, 5), torch.zeros(8, WIDTH))
    with pytest.raises(InputError, match="the loss does not fit a microbatch"):
        pipeline.step(torch.zeros(8, WIDTH), torch.zeros(8, 3))
    with pytest.raises(InputError, match="2 weights for 4"):
        pipeline.step(torch.zeros(8, WIDTH), torch.zeros(8, WIDTH), weights=[1, 2])


def test_a_step_that_fails_leaves_nothing() -> None:
    """The next one is as if it had not been, though some gradients had been added."""
    program = one_f_one_b(devices=2, microbatches=4)
    stages = [*linear(1), Faulty()]
    pipeline = Pipeline(stages, program, loss=squared, optimizer=plain_descent)
    ((batch, target),) = batches(8, 1)
    with pytest.raises(WeftError, match="device 1 failed at 1F2: out of luck"):
        pipeline.step(batch, target)
    copies = copy.deepcopy(stages)
    pipeline.step(batch, target)
    Reference(copies, program, loss=squared, optimizer=plain_descent).step(batch, target)
    for mine, theirs in zip(stages[0].parameters(), copies[0].parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_splitting() -> None:
    whole = layers(5)
    assert [len(part) for part in split(whole, stages=2)] == [3, 2]  # type: ignore[arg-type]
    assert [len(part) for part in split(whole, stages=2, layers=[1, 4])] == [1, 4]  # type: ignore[arg-type]
    names = [name for part in split(whole, stages=2) for name, _ in part.named_parameters()]
    assert names == [name for name, _ in whole.named_parameters()]
    for stages, sizes in ((0, None), (6, None), (2, [5]), (2, [0, 5])):
        with pytest.raises(InputError):
            split(whole, stages=stages, layers=sizes)

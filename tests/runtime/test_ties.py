"""Weights that stages share stay one weight, whichever devices and pipes hold them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.exactness import differences, differences_of
from tests.runtime.models import WIDTH, batches, likelihood, plain_descent, squared, tied, words
from weft.errors import InputError
from weft.ir.program import Program
from weft.runtime import Pipeline, Reference
from weft.schedules import (
    chimera,
    dualpipev,
    gpipe,
    interleaved_1f1b,
    one_f_one_b,
    pipedream,
    pipedream_2bw,
    zb_h1,
    zbv,
)

SHAPE = {"devices": 4, "microbatches": 8}
PROGRAMS = [
    one_f_one_b(**SHAPE),
    interleaved_1f1b(stages_per_device=2, **SHAPE),
    zb_h1(**SHAPE),
    zbv(**SHAPE),
    dualpipev(**SHAPE),
    chimera(**SHAPE),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_weight_of_the_first_and_the_last_stage(program: Program) -> None:
    assert differences_of("tied", program) == []


def twice(count: int) -> list[nn.Module]:
    """Two weights of two stages each: the table, and that of the linear layers between."""
    stages = tied(count)
    for stage in stages[1:-1]:
        assert isinstance(stage, nn.Linear)
        stage.weight = stages[1].weight  # type: ignore[assignment]
    return stages


@pytest.mark.parametrize("program", [zb_h1(**SHAPE), chimera(**SHAPE)], ids=lambda p: p.name)
def test_several_weights_of_several_stages(program: Program) -> None:
    found = differences(twice(4), program, words(23, 2), loss=likelihood, clip=0.5)
    assert found == []


def test_all_ends_stay_equal() -> None:
    program = gpipe(devices=2, microbatches=4)
    pipeline = Pipeline(tied(2), program, loss=likelihood, optimizer=plain_descent)
    for batch, target in words(8, 3):
        pipeline.step(batch, target)
    first, last = pipeline.modules.values()
    table, head = first.get_parameter("0.weight"), last.get_parameter("1.weight")
    assert table is not head
    assert torch.equal(table, head)


def test_the_reference_is_the_unsplit_model() -> None:
    """One weight with the gradients of both its uses, up to the order of one addition."""
    stages = tied(2)
    whole = nn.Sequential(*copy.deepcopy(stages))
    ((batch, target),) = words(8, 1)
    reference = Reference(stages, gpipe(devices=2, microbatches=1), loss=likelihood)
    reference.step(batch, target)
    torch.autograd.backward(likelihood(whole(batch), target))
    for mine, theirs in zip(nn.Sequential(*stages).parameters(), whole.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_clipping_counts_a_shared_weight_once() -> None:
    """d(w * w) / dw = 2 w, half of it at either end: a norm of 7, not of (7, 7) or (3.5, 3.5)."""
    table, head = nn.Embedding(1, 1), nn.Linear(1, 1, bias=False)
    nn.init.constant_(table.weight, 3.5)
    head.weight = table.weight
    pipeline = Pipeline(
        [table, head],
        gpipe(devices=2, microbatches=1),
        loss=lambda output, _: output.sum(),
        optimizer=plain_descent,
        clip=1.0,
    )
    ids = torch.zeros(1, dtype=torch.long)
    assert pipeline.step(ids, ids).norm == 7


class Clamping(nn.Linear):
    """Keeps its weight small, in its forward."""

    def forward(self, value: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.clamp_(-0.01, 0.01)
        return super().forward(value)


@pytest.mark.parametrize("is_frozen", [False, True])
@pytest.mark.parametrize("make", [one_f_one_b, pipedream, pipedream_2bw])
def test_a_forward_that_changes_a_shared_weight_is_refused(make: Any, is_frozen: bool) -> None:
    """The other stage has a copy, and would not see that; also of one that never learns."""
    program = make(devices=2, microbatches=2)
    first, second = nn.Linear(WIDTH, WIDTH), Clamping(WIDTH, WIDTH)
    second.weight = first.weight.requires_grad_(not is_frozen)
    ((batch, target),) = batches(4 * program.microbatches, 1)
    with (
        Pipeline([first, second], program, loss=squared, optimizer=plain_descent) as pipeline,
        pytest.raises(InputError, match="stage 1 changes"),
    ):
        pipeline.step(batch, target)


@pytest.mark.parametrize("precision", ["bf16", "autocast"])
def test_a_shared_weight_that_never_learns_needs_no_sum_in_another_type(precision: Any) -> None:
    program = one_f_one_b(devices=2, microbatches=2)
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    second.weight = first.weight.requires_grad_(False)
    stages = [first, second]
    assert not differences(stages, program, batches(4, 2), precision=precision)

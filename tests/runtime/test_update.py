"""Between the last backward and the next step: what is summed, clipped, stepped and cleared."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

from tests.runtime.exactness import differences
from tests.runtime.models import (
    WIDTH,
    batches,
    first_squared,
    forked,
    layers,
    plain_descent,
    squared,
)
from weft.runtime import Pipeline, Reference, split
from weft.schedules import chimera, gpipe, one_f_one_b


class Still(nn.Module):
    """A weight whose gradient is zero and one that has none, beside a layer that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.still, self.unused = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
        self.line = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.line(value) + 0 * self.still
        return out


def test_the_norm_counts_gradients_of_zero() -> None:
    """They change no sum, but which of the others are added first, and so its last bits."""
    torch.manual_seed(0)
    stages = [nn.Sequential(*(Still() for _ in range(9))) for _ in range(2)]
    program = gpipe(devices=2, microbatches=2)
    assert differences(stages, program, batches(16, 8), clip=1e-3) == []


def test_a_weight_that_nothing_uses_has_no_gradient_on_two_pipes_either() -> None:
    """AdamW shrinks every weight that has one, be it zero."""
    program = chimera(devices=2, microbatches=4)
    assert differences(forked(2), program, batches(8, 2), loss=first_squared) == []


def test_batches_pile_up_as_in_the_reference() -> None:
    """Also where each pipe keeps its own sum until the update."""
    data = batches(11, 6)
    for program in (one_f_one_b(devices=2, microbatches=4), chimera(devices=2, microbatches=4)):
        stages = split(layers(2), stages=2)
        copies = copy.deepcopy(stages)
        pipeline = Pipeline(stages, program, loss=squared, optimizer=plain_descent, clip=0.5)
        reference = Reference(copies, program, loss=squared, optimizer=plain_descent, clip=0.5)
        for step, (batch, target) in enumerate(data):
            pipeline.step(batch, target, update=step % 3 == 2)
            reference.step(batch, target, update=step % 3 == 2)
        for (_, index), module in pipeline.modules.items():
            pairs = zip(module.parameters(), copies[index].parameters(), strict=True)
            assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


def test_a_scheduler_steps_once_for_each_update_of_each_stage() -> None:
    pipeline = Pipeline(
        split(layers(2), stages=2),
        gpipe(devices=2, microbatches=4),
        loss=squared,
        optimizer=plain_descent,
        scheduler=lambda optimizer: StepLR(optimizer, step_size=1, gamma=0.5),
    )
    rates = []
    for step, (batch, target) in enumerate(batches(8, 4)):
        pipeline.step(batch, target, update=step != 1)
        rates.append([group["lr"] for made in pipeline.optimizers for group in made.param_groups])
    assert rates == [[0.05] * 2, [0.05] * 2, [0.025] * 2, [0.0125] * 2]

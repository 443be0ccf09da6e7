"""Parameters that a user puts in the place of those of a pipeline: no optimizer knows them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn, optim

from tests.runtime.models import WIDTH, batches, squared
from weft.errors import InputError
from weft.runtime import Pipeline
from weft.schedules import one_f_one_b

REFUSED = "stage 1 has another parameter .* would not be trained"


def assigned(module: nn.Module) -> None:
    values = {name: value.clone() for name, value in module.state_dict().items()}
    module.load_state_dict(values, assign=True)


def replaced(module: nn.Module) -> None:
    module.weight = nn.Parameter(torch.zeros(WIDTH, WIDTH))


def added(module: nn.Module) -> None:
    module.register_parameter("extra", nn.Parameter(torch.zeros(WIDTH)))


def parametrized(module: nn.Module) -> None:
    nn.utils.parametrizations.weight_norm(module)


@pytest.fixture
def pipeline() -> Pipeline:
    program = one_f_one_b(devices=2, microbatches=2)
    return Pipeline(
        [nn.Linear(WIDTH, WIDTH) for _ in range(2)], program, loss=squared, optimizer=sgd
    )


def sgd(named: object) -> optim.Optimizer:
    return optim.SGD([weight for _, weight in named], lr=0.1)  # type: ignore[attr-defined]


@pytest.mark.parametrize("change", [assigned, replaced, added, parametrized])
def test_what_no_optimizer_knows_is_refused(
    pipeline: Pipeline, change: Callable[[nn.Module], None]
) -> None:
    ((batch, target),) = batches(8, 1)
    pipeline.step(batch, target)
    change(pipeline.modules[0, 1])
    with pytest.raises(InputError, match=REFUSED):
        pipeline.step(batch, target)


def test_values_may_be_loaded_and_others_evaluated(pipeline: Pipeline) -> None:
    """As one evaluates averaged weights, and goes on with those that are trained."""
    ((batch, target),) = batches(8, 1)
    pipeline.step(batch, target)
    module = pipeline.modules[0, 1]
    own = dict(module.named_parameters())
    module.load_state_dict({name: 0.5 * value for name, value in module.state_dict().items()})
    assigned(module)
    before = pipeline.evaluate(batch, target).losses
    for name, weight in own.items():
        setattr(module, name, weight)
    assert torch.equal(pipeline.step(batch, target).losses, before)

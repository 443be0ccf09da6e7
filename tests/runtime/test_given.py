"""What is easily given in the place of stages, a program or a factory, is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.models import WIDTH, squared
from weft.errors import InputError
from weft.runtime import Pipeline, Reference
from weft.schedules import one_f_one_b

PROGRAM = one_f_one_b(devices=2, microbatches=2)


def line() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def refused(reason: str, **given: Any) -> None:
    usual: dict[str, Any] = {"stages": [line(), line()], "program": PROGRAM, "loss": squared}
    for kind in (Pipeline, Reference):
        with pytest.raises(InputError, match=reason):
            kind(**usual | given)


@pytest.mark.parametrize("program", ["1f1b", one_f_one_b])
def test_a_schedule_without_a_shape(program: Any) -> None:
    refused(r"a pipeline runs a program.* weft.schedules.REGISTRY\['1f1b'\]", program=program)


def test_what_is_no_program_at_all() -> None:
    refused("a pipeline runs a program, not a value of type int", program=3)


def test_a_model_that_is_not_cut() -> None:
    refused(r"Linear is one module: cut it with weft.split\(model, stages=2", stages=line())
    with pytest.raises(InputError, match=r"3 modules for the 2 stages of 1f1b; weft.split"):
        Pipeline([line()] * 3, PROGRAM, loss=squared)


def test_a_slice_for_each_stage_may_be_a_sequential() -> None:
    stages: Any = nn.Sequential(line(), line())
    assert len(Pipeline(stages, PROGRAM, loss=squared).modules) == 2


def test_an_optimizer_in_the_place_of_what_makes_one() -> None:
    made = torch.optim.SGD(line().parameters(), lr=0.1)
    refused(
        "optimizer= is a function that makes .*, not a value of type SGD: lambda named",
        optimizer=made,
    )
    scheduler = torch.optim.lr_scheduler.StepLR(made, 3)
    refused(
        "scheduler= is a function that makes .*, not a value of type StepLR", scheduler=scheduler
    )


def test_the_class_of_a_loss() -> None:
    refused(r"MSELoss is a class: make one, MSELoss\(\)", loss=nn.MSELoss)
    refused("loss= is a function of outputs and targets, not 'mse'", loss="mse")


def test_a_model_in_the_place_of_its_weights() -> None:
    refused(r"initial= is a file, .* as state_dict\(\) is, not a value of type L", initial=line())


@pytest.mark.parametrize("seconds", [-1, 0, "5", float("nan")])
def test_a_deadline_before_the_beginning(seconds: Any) -> None:
    with pytest.raises(InputError, match=r"deadline=.*: use seconds above 0, or None"):
        Pipeline([line(), line()], PROGRAM, loss=squared, deadline=seconds)


def test_metrics_without_names() -> None:
    pipeline = Pipeline([line(), line()], PROGRAM, loss=squared)
    loader = [(torch.zeros(4, WIDTH), torch.zeros(4, WIDTH))]
    metrics: Any = [squared]
    with pytest.raises(InputError, match=r"metrics= has functions .* by name, .*is a value"):
        pipeline.evaluate(loader, metrics=metrics)

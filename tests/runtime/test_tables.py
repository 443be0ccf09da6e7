"""Stages that one rank outlines as others do, though only it has run or evaluated them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.models import WIDTH, adam, batches, linear, squared
from tests.runtime.ranks import TRANSPORTS, run
from weft.runtime import Pipeline
from weft.runtime.stage.outline import faked, outlined, outlining
from weft.runtime.stage.values import Value
from weft.schedules import interleaved_1f1b

CPU = torch.device("cpu")


class Cached(nn.Linear):
    """Makes a table when it is first called, and keeps another in a dict."""

    table: Tensor | None = None

    def forward(self, value: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.linspace(0, 1, value.shape[1])
            self.tables = {"twice": 2 * self.table}
        return super().forward(value) + self.table + self.tables["twice"]


def test_a_module_that_has_its_table_still_has_an_outline() -> None:
    module, value = Cached(WIDTH, WIDTH), torch.zeros(2, WIDTH)
    module(value)
    with outlining(is_compiled=False):
        given = faked(Value.of(value, "a value"), CPU)
        found = outlined(module, [given], CPU, is_first=True)
    assert found is not None
    assert [leaf.shape for leaf in found.value.leaves] == [(2, WIDTH)]
    assert type(module.table) is Tensor


def evaluated_first(transport: Any) -> list[float]:
    """In each rank: the losses of a pipeline that is evaluated before it trains."""
    torch.manual_seed(0)
    program = interleaved_1f1b(devices=2, microbatches=2)
    stages = [Cached(WIDTH, WIDTH), *linear(program.stages - 1)]
    with Pipeline(
        stages,
        program,
        loss=squared,
        optimizer=adam,
        transport=transport,
        deadline=20.0,
        first_deadline=20.0,
    ) as pipeline:
        data = batches(4, 2)
        return [pipeline.evaluate(*data[0]).loss.item(), pipeline.step(*data[1]).loss.item()]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ranks_agree_on_shapes_though_one_of_them_has_the_table(transport: str) -> None:
    assert run(2, evaluated_first, transport) == [evaluated_first("loopback")] * 2


def evaluated_row_by_row(transport: Any) -> float:
    """In each rank: the loss of microbatches of one row, with which BatchNorm cannot be trained."""
    torch.manual_seed(0)
    program = interleaved_1f1b(devices=2, microbatches=2)
    stages = [nn.BatchNorm1d(WIDTH, momentum=None), *linear(program.stages - 1)]
    more: dict[str, Any] = {"transport": transport, "deadline": 20.0, "first_deadline": 20.0}
    with Pipeline(stages, program, loss=squared, **more) as pipeline:
        found = pipeline.evaluate(*batches(2, 1)[0]).loss.item()
    assert all(stage.training for stage in stages)
    return found


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_all_ranks_outline_an_evaluation_as_one(transport: str) -> None:
    assert run(2, evaluated_row_by_row, transport) == [evaluated_row_by_row("loopback")] * 2

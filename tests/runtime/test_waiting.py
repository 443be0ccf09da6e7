"""What a host that runs ahead of its device waits for: losses and norms that decide, no others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from tests.runtime.models import batches, linear, squared
from weft.runtime import Pipeline
from weft.runtime.device.readout import Readouts
from weft.runtime.lane import steps
from weft.runtime.ranks import losses
from weft.runtime.weights import norms
from weft.schedules import one_f_one_b, pipedream_2bw

PROGRAM = one_f_one_b(devices=2, microbatches=4)


class Never:
    """An event of a device that is not reached before somebody waits for it."""

    waits = 0
    is_reached = False

    def query(self) -> bool:
        return Never.is_reached


class Slow(Readouts):
    """Of a device that computes a number only when a host waits for it, which is counted."""

    def _launch(self, values: Tensor) -> tuple[Tensor, Never]:
        return values.clone(), Never()

    def settle(self, what: str) -> None:
        Never.waits += bool(self._pending)
        Never.is_reached = True
        super().settle(what)
        Never.is_reached = False


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (losses, norms):
        monkeypatch.setattr(module, "Readouts", Slow)
    monkeypatch.setattr(steps, "_known", lambda loss: loss)  # as on a device
    Never.waits, Never.is_reached = 0, False


def adam(named: Iterable[tuple[str, nn.Parameter]]) -> optim.Optimizer:
    return optim.AdamW([weight for _, weight in named])


def waits(program: Any = PROGRAM, steps_taken: int = 3, **settings: Any) -> int:
    """How often the host waits in some steps that nobody asks for anything."""
    settings = {"optimizer": adam, **settings}
    with Pipeline(linear(2), program, loss=squared, **settings) as pipeline:
        for batch, target in batches(8, steps_taken):
            pipeline.step(batch, target)
        return Never.waits


def test_a_step_that_ignores_what_is_not_finite_waits_for_nothing() -> None:
    assert waits(nonfinite="ignore") == 0


def test_a_step_without_an_update_waits_for_nothing() -> None:
    assert waits(nonfinite="ignore", optimizer=None) == 0


@pytest.mark.parametrize("nonfinite", ["stop", "skip"])
def test_what_may_not_change_a_weight_waits_once_for_each_update(nonfinite: str) -> None:
    assert waits(nonfinite=nonfinite) == 3


def test_clipping_waits_once_for_each_update() -> None:
    """For the norm; losses are there by then."""
    assert waits(nonfinite="ignore", clip=1.0) == 3
    Never.waits = 0
    assert waits(nonfinite="stop", clip=1.0) <= 2 * 3


def test_an_asynchronous_run_waits_for_nothing_either() -> None:
    program = pipedream_2bw(devices=2, microbatches=4, updates=6)
    assert waits(program, steps_taken=6, nonfinite="ignore") == 0


def test_a_loss_is_waited_for_when_somebody_asks() -> None:
    with Pipeline(linear(2), PROGRAM, loss=squared, nonfinite="ignore") as pipeline:
        ((batch, target),) = batches(8, 1)
        result = pipeline.step(batch, target)
        assert Never.waits == 0
        assert torch.isfinite(result.loss)
        assert Never.waits == 1


def test_a_loss_that_is_not_finite_still_changes_no_weight() -> None:
    stages = linear(2)
    before = [weight.clone() for stage in stages for weight in stage.parameters()]
    with Pipeline(stages, PROGRAM, loss=squared, optimizer=adam, nonfinite="skip") as pipeline:
        ((batch, target),) = batches(8, 1)
        assert pipeline.step(batch, torch.full_like(target, torch.inf)).is_skipped
    after = [weight for stage in stages for weight in stage.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))

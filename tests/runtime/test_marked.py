"""Marked modules beside what people write: changes in place, checkpoints, hooks, complex values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import weft
from tests.runtime.models import WIDTH
from tests.runtime.test_offloading import Trained
from weft.errors import InputError, WeftError
from weft.runtime import Pipeline
from weft.runtime.stage.storage.selective import mark_selective
from weft.schedules import one_f_one_b


class Sandwich(nn.Module):
    """A recomputed activation function between two lines."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.first, self.act = nn.Linear(WIDTH, WIDTH), weft.recomputed(act)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.last(self.act(self.first(value)))
        return out


@pytest.mark.parametrize("kind", [nn.SiLU, nn.ELU], ids=lambda kind: kind.__name__)
def test_what_changes_its_input_in_place_is_not_recomputed(kind: Any) -> None:
    program = one_f_one_b(devices=1, microbatches=2)
    with (
        pytest.raises(InputError, match="act is recomputed, and changes its input in place"),
        Pipeline([Sandwich(kind(inplace=True))], program, loss=functional.mse_loss) as pipeline,
    ):
        pipeline.step(torch.randn(4, WIDTH), torch.randn(4, WIDTH))
    assert mark_selective([nn.Sequential(kind(inplace=True), kind())]) == 1


class ChangedLater(Sandwich):
    """Changes what it has given to the recomputed module, which needs it again."""

    def forward(self, value: Tensor) -> Tensor:
        inner = self.first(value)
        gate = self.act(inner)
        inner.add_(1.0)
        out: Tensor = self.last(gate) + inner
        return out


class Unlawful(Sandwich):
    """Changes what autograd has saved beside a recomputed module."""

    def forward(self, value: Tensor) -> Tensor:
        gate = self.first(value).sigmoid()
        out: Tensor = self.act(self.last(gate) + gate.add_(1.0))
        return out


@pytest.mark.parametrize("kind", [ChangedLater, Unlawful])
def test_a_change_of_what_is_saved_beside_marks_is_refused(kind: type[Sandwich]) -> None:
    program = one_f_one_b(devices=1, microbatches=2)
    with (
        Pipeline([kind(nn.Sigmoid())], program, loss=functional.mse_loss) as pipeline,
        pytest.raises(WeftError, match="modified by an inplace operation"),
    ):
        pipeline.step(torch.randn(4, WIDTH), torch.randn(4, WIDTH))


class Turned(nn.Module):
    """A complex function of what it is given."""

    def forward(self, value: Tensor) -> Tensor:
        return torch.complex(value, 2 * value) * (1 + 0.5j)


class Conjugated(nn.Module):
    """Saves what it is given as torch conjugates it: by a mark on the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.turned = nn.Linear(WIDTH, WIDTH), Turned()

    def forward(self, value: Tensor) -> Tensor:
        inner = self.line(value)
        turned = self.turned(inner).conj()
        out: Tensor = (torch.complex(inner, inner.sin()) * turned).imag + turned.imag * inner
        return out


def test_what_was_returned_comes_back_conjugated_where_it_was_saved_so() -> None:
    torch.manual_seed(2)
    case = Trained(one_f_one_b(devices=1, microbatches=2), [Conjugated()])
    weft.recomputed(case._stages[0].get_submodule("turned"))
    assert case.differences("none") == []

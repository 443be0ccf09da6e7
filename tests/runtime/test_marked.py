"""Marked modules beside what people write: changes in place, checkpoints, hooks, complex values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import weft
from tests.runtime.models import WIDTH, squared
from tests.runtime.test_offloading import Trained
from weft.errors import InputError, WeftError
from weft.runtime import Pipeline, Reference
from weft.runtime.stage.storage.selective import mark_selective
from weft.schedules import one_f_one_b, zb_h1


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


def test_a_reference_that_rounds_refuses_it_as_well() -> None:
    stage = Unlawful(nn.Sigmoid())
    weft.stored_in_fp8(stage.last)
    reference = Reference([stage], one_f_one_b(devices=1, microbatches=2), loss=squared)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        reference.step(torch.randn(4, WIDTH), torch.randn(4, WIDTH))


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


class Inside(nn.Module):
    """Is stored in FP8 whole, and gives what it is given to a norm that is recomputed."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.up = weft.recomputed(norm), nn.Linear(WIDTH, WIDTH)
        weft.stored_in_fp8(self)

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = value + self.up(self.norm(value)).sin()
        return out


class Checkpointed(nn.Module):
    """A module that is stored in FP8, in a checkpoint of the user's own."""

    def __init__(self, *, is_reentrant: bool) -> None:
        super().__init__()
        self.first, self.is_reentrant = nn.Linear(WIDTH, WIDTH), is_reentrant
        self.inner = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), weft.stored_in_fp8(nn.Linear(WIDTH, WIDTH)), nn.GELU()
        )

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.inner, self.first(value), use_reentrant=self.is_reentrant)
        return out


class Hooked(Checkpointed):
    """The same, where the user says how tensors are saved."""

    def forward(self, value: Tensor) -> Tensor:
        with saved_tensors_hooks(torch.clone, torch.clone):
            out: Tensor = self.inner(self.first(value))
        return out


NESTED: dict[str, Callable[[], nn.Module]] = {
    "layer norm": lambda: Inside(nn.LayerNorm(WIDTH)),
    "RMS norm": lambda: Inside(nn.RMSNorm(WIDTH)),
    "checkpoint": lambda: Checkpointed(is_reentrant=False),
    "reentrant checkpoint": lambda: Checkpointed(is_reentrant=True),
    "hooks": lambda: Hooked(is_reentrant=False),
}


@pytest.mark.parametrize("name", NESTED)
def test_marks_within_marks_and_checkpoints_are_what_the_reference_says(name: str) -> None:
    torch.manual_seed(2)
    program = one_f_one_b(devices=2, microbatches=4)
    case = Trained(program, [NESTED[name]() for _ in range(2)], steps=3)
    assert case.differences("none") == []
    assert case.differences("all") == []


@pytest.mark.parametrize("precision", ["autocast", "bf16"])
def test_weight_gradients_that_come_later_round_what_the_others_round(precision: Any) -> None:
    torch.manual_seed(2)
    program = zb_h1(devices=2, microbatches=4)
    stages = [weft.stored_in_fp8(nn.Sequential(nn.Linear(WIDTH, WIDTH))) for _ in range(2)]
    case = Trained(program, [*stages], steps=3, precision=precision)
    assert case.differences("none") == []
    assert case.differences("all") == []

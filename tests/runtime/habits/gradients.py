"""Layers that change what autograd does: cut, checkpointed, computed by hand, cast."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.runtime.habits.layers import Lined
from tests.runtime.habits.size import WIDTH
from tests.runtime.habits.where import here


class Cut(Lined):
    """No gradient passes."""

    def forward(self, value: Tensor) -> Tensor:
        return self.line(value.detach())


class CutBehind(Lined):
    """No gradient arrives at its layer."""

    def forward(self, value: Tensor) -> Tensor:
        return self.line(value).detach()


class Stopped(Lined):
    """A branch without gradient."""

    def forward(self, value: Tensor) -> Tensor:
        with torch.no_grad():
            share = torch.sigmoid(self.line(value))
        return value * share


class Features(nn.Module):
    """A fixed part below a trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.below = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.line = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        return self.line(torch.tanh(self.below(value)))


class HalfFrozen(nn.Module):
    """A layer whose bias alone is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH)
        self.line.weight.requires_grad_(False)

    def forward(self, value: Tensor) -> Tensor:
        return self.line(value)


class Checkpointed(nn.Module):
    """Dropout, linear layers and activations, computed again in the backward."""

    def __init__(self, *, is_reentrant: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.3), nn.Linear(WIDTH, WIDTH)
        )
        self._is_reentrant = is_reentrant

    def forward(self, value: Tensor) -> Tensor:
        return checkpoint(self._inside, value, use_reentrant=self._is_reentrant)

    def _inside(self, value: Tensor) -> Tensor:
        return functional.dropout(self.inner(value), 0.2, self.training)


class Reversed(torch.autograd.Function):
    """Passes a value on, and its gradient with the other sign."""

    @staticmethod
    def forward(context: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return -gradient


class Product(torch.autograd.Function):
    """A product with a weight whose backward is written by hand."""

    @staticmethod
    def forward(context: Any, value: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(value, weight)
        return value @ weight

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        value, weight = context.saved_tensors
        return gradient @ weight.t(), torch.einsum("nlw,nlv->wv", value, gradient)


class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        product: Any = Product.apply(value, self.weight)  # type: ignore[no-untyped-call]
        return Reversed.apply(product)  # type: ignore[no-untyped-call]


class StraightThrough(Lined):
    """Rounds, and passes the gradient as if it had not."""

    def forward(self, value: Tensor) -> Tensor:
        out = self.line(value)
        return out + (torch.round(4 * out) / 4 - out).detach()


class InnerGradient(nn.Module):
    """Its output is the gradient of an energy that it has learned."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        with torch.enable_grad():
            place = value if value.requires_grad else value.detach().requires_grad_()
            energy = torch.tanh(self.line(place)).square().sum()
            (force,) = torch.autograd.grad(energy, place, create_graph=True)
        return value - force


class Cast(Lined):
    """Computes in bfloat16 inside."""

    def forward(self, value: Tensor) -> Tensor:
        with torch.autocast(here(), torch.bfloat16):
            out = self.line(torch.tanh(self.line(value)))
        return out.to(value.dtype)


class Uncast(Lined):
    """Does not let itself be cast."""

    def forward(self, value: Tensor) -> Tensor:
        with torch.autocast(here(), enabled=False):
            out = self.line(value.to(self.line.weight.dtype))
        return out


class Bounded(Lined):
    """Sets the gradient mode by a decorator, and a weight to a part of another."""

    @torch.no_grad()
    def _scale(self, value: Tensor) -> Tensor:
        return value.abs().amax((1, 2), keepdim=True).clamp_min(0.1)

    def forward(self, value: Tensor) -> Tensor:
        return self.line(value / self._scale(value))

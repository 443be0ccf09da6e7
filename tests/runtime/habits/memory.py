"""Layers that remember: buffers, statistics, parametrizations, caches, counters."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, weight_norm
from torch.nn.utils.spectral_norm import spectral_norm

from tests.runtime.habits.layers import Lined
from tests.runtime.habits.size import LENGTH, WIDTH


class BatchNorm(nn.Module):
    def __init__(self, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH, momentum=momentum)

    def forward(self, value: Tensor) -> Tensor:
        return self.norm(value.transpose(1, 2)).transpose(1, 2)


class Spectral(nn.Module):
    """A power iteration in every forward, on a buffer that the forward reads."""

    def __init__(self) -> None:
        super().__init__()
        self.line = parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, value: Tensor) -> Tensor:
        return self.line(value)


class SpectralHook(nn.Module):
    """The same by a forward hook, as it used to be written."""

    def __init__(self) -> None:
        super().__init__()
        self.line = spectral_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, value: Tensor) -> Tensor:
        return self.line(value)


class WeightNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, value: Tensor) -> Tensor:
        return self.line(value)


class WeightNormHook(nn.Module):
    """Its weight is made of two others by a hook, as it used to be written."""

    def __init__(self) -> None:
        super().__init__()
        self.line = weight_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, value: Tensor) -> Tensor:
        return self.line(value)


class Pruned(nn.Module):
    """Half of its weight is masked, by a hook."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH, bias=bias)
        prune.l1_unstructured(self.line, "weight", amount=0.5)  # type: ignore[no-untyped-call]

    def forward(self, value: Tensor) -> Tensor:
        return self.line(value)


class Centred(Lined):
    """Subtracts a moving mean, then moves it, in place."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, value: Tensor) -> Tensor:
        out = self.line(value) - self.mean
        if self.training:
            self.mean.mul_(0.8).add_(0.2 * value.detach().mean((0, 1)))
        return out


class Reassigned(Lined):
    """The same with a new tensor in the buffer's place, which is not saved."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH), persistent=False)

    def forward(self, value: Tensor) -> Tensor:
        out = self.line(value) * (1 + self.mean)
        if self.training:
            self.mean = 0.8 * self.mean + 0.2 * value.detach().mean((0, 1))
        return out


class Counting(Lined):
    """Scales by a buffer that counts its forwards."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, value: Tensor) -> Tensor:
        self.calls += self.training
        return self.line(value) / (1 + 0.1 * self.calls)


class Tallied(Lined):
    """Scales by a Python number that counts its forwards."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, value: Tensor) -> Tensor:
        self.calls += self.training
        return self.line(value) / (1 + 0.1 * self.calls)


class Cached(Lined):
    """Makes a table when it is first called."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None

    def forward(self, value: Tensor) -> Tensor:
        if self.table is None:
            places = torch.arange(value.shape[1], dtype=value.dtype, device=value.device)
            self.table = places[:, None] / LENGTH
        return self.line(value) + self.table


class Constant(Lined):
    """A tensor that is neither weight nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.linspace(0, 1, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        return self.line(value) + self.table

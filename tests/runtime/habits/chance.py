"""Layers that draw: with a module for it, without one, from a generator of their own."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import random

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.runtime.habits.layers import Lined
from tests.runtime.habits.size import WIDTH


class FunctionalDropout(Lined):
    def forward(self, value: Tensor) -> Tensor:
        return functional.dropout(self.line(value), 0.3, self.training)


class AlwaysDropout(nn.Module):
    """Drops in evaluation too."""

    def forward(self, value: Tensor) -> Tensor:
        return functional.dropout(value, 0.3)


class DropsTwice(Lined):
    """Two draws of one module, around a layer."""

    def forward(self, value: Tensor) -> Tensor:
        value = functional.dropout(value, 0.2, self.training)
        return functional.dropout(self.line(value), 0.3, self.training)


class OneDropoutTwice(Lined):
    """One dropout module, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def forward(self, value: Tensor) -> Tensor:
        return self.drop(self.line(self.drop(value)))


class SharedDropout(nn.Module):
    """One dropout module in two children."""

    def __init__(self) -> None:
        super().__init__()
        drop = nn.Dropout(0.3)
        self.left = nn.Sequential(nn.Linear(WIDTH, WIDTH), drop)
        self.right = nn.Sequential(nn.Linear(WIDTH, WIDTH), drop)

    def forward(self, value: Tensor) -> Tensor:
        return self.left(value) + self.right(value)


class ScaledAttention(nn.Module):
    """Attention whose dropout happens inside the function."""

    def __init__(self) -> None:
        super().__init__()
        self.all = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        query, key, content = self.all(value).unsqueeze(1).chunk(3, -1)
        share = 0.3 if self.training else 0.0
        out = functional.scaled_dot_product_attention(query, key, content, dropout_p=share)
        return value + out.squeeze(1)


class Noise(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return value + 0.3 * torch.rand_like(value) if self.training else value


class NormalNoise(nn.Module):
    """Draws on the type and device of a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.3))

    def forward(self, value: Tensor) -> Tensor:
        drawn = torch.randn(value.shape, dtype=self.scale.dtype, device=self.scale.device)
        return value + self.scale * drawn


class DropPath(Lined):
    """Leaves whole rows out."""

    def forward(self, value: Tensor) -> Tensor:
        kept = torch.empty(len(value), 1, 1, dtype=value.dtype).bernoulli_(0.6)
        return value + self.line(value) * kept


class LayerDrop(Lined):
    """Leaves a layer out, by a number drawn on the host."""

    def forward(self, value: Tensor) -> Tensor:
        is_dropped = self.training and float(torch.rand([])) < 0.4
        return value if is_dropped else self.line(value)


class OwnGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, value: Tensor) -> Tensor:
        drawn = torch.rand(value.shape, generator=self.generator, dtype=value.dtype)
        return value * (0.5 + drawn)


class HostRandom(Lined):
    """Leaves a layer out, by a number that is not torch's."""

    def forward(self, value: Tensor) -> Tensor:
        return value if random.random() < 0.4 else self.line(value)


class Shuffled(Lined):
    def forward(self, value: Tensor) -> Tensor:
        order = torch.randperm(value.shape[1])
        return self.line(value[:, order])


class NoisyHook(Lined):
    """A forward hook adds noise to what a layer gives."""

    def __init__(self) -> None:
        super().__init__()
        self.line.register_forward_hook(_noisy)

    def forward(self, value: Tensor) -> Tensor:
        return self.line(value)


def _noisy(module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
    return output + 0.2 * torch.randn_like(output) if module.training else output

"""Small models that the runtime's tests train."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH = 8


def layers(count: int, dtype: torch.dtype = torch.float32, *, seed: int = 0) -> nn.Sequential:
    """Linear layers with and without bias, norms, dropout: what a split must get right."""
    torch.manual_seed(seed)
    made = [
        nn.Sequential(
            nn.Linear(WIDTH, WIDTH, bias=index % 2 == 0),
            nn.LayerNorm(WIDTH),
            nn.Dropout(0.1),
            nn.ReLU(),
        )
        for index in range(count)
    ]
    return nn.Sequential(*made).to(dtype)


def squared(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target) ** 2).mean()


def batches(
    size: int, steps: int, dtype: torch.dtype = torch.float32
) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)

    def draw() -> Tensor:
        return torch.randn(size, WIDTH, generator=generator, dtype=torch.float64).to(dtype)

    return [(draw(), draw()) for _ in range(steps)]


def is_same(one: Tensor | None, other: Tensor | None) -> bool:
    """Bit for bit, and there at all."""
    return one is not None and other is not None and torch.equal(one, other)


class Faulty(nn.Module):
    """Fails in its third forward."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.calls = nn.Linear(WIDTH, WIDTH), 0

    def forward(self, value: Tensor) -> Tensor:
        self.calls += not value.is_meta
        if self.calls == 3:
            raise ValueError("out of luck")
        out: Tensor = self.line(value)
        return out

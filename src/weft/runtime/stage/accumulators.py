"""Accumulators: gradients of weights that add up where graphs can find them again.

A graph adds to fixed memory, so that is what `.grad` is, from a step's first backward until its
gradients are taken. It starts from -0.0, the one number that changes nothing it is added to: 0.0
would turn a gradient of -0.0 into 0.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

Accumulator: TypeAlias = tuple[nn.Parameter, Tensor]  # a weight, and what its gradients add up in


class Accumulators:
    """Where the gradients of a stage's weights add up."""

    def __init__(self) -> None:
        self._sums: dict[nn.Parameter, Tensor] = {}

    def of(self, weights: Sequence[nn.Parameter]) -> list[Accumulator]:
        """Those of some weights."""
        for weight in weights:
            if weight not in self._sums:
                self._sums[weight] = torch.empty_like(weight, requires_grad=False)
        return [(weight, self._sums[weight]) for weight in weights]


def open_all(accumulators: Sequence[Accumulator]) -> None:
    """Let `.grad` of their weights be what graphs add to, with what is there already."""
    fresh = []
    for weight, found in accumulators:
        grad = weight.grad
        if grad is found:
            continue
        if grad is None:
            fresh.append(found)
        else:
            found.copy_(grad)
        weight.grad = found
    if fresh:
        torch._foreach_zero_(fresh)
        torch._foreach_neg_(fresh)


class Opened:
    """Opens accumulators for what is captured, and sees which of them it adds to."""

    def __init__(self, accumulators: Accumulators, weights: Sequence[nn.Parameter]) -> None:
        self._all = accumulators.of([weight for weight in weights if weight.requires_grad])
        self.used: list[Accumulator] = []

    def __enter__(self) -> Opened:
        self._before = [weight.grad for weight, _ in self._all]
        open_all(self._all)
        self._versions = [found._version for _, found in self._all]
        return self

    def __exit__(self, *_: object) -> None:
        rows = zip(self._all, self._before, self._versions, strict=True)
        for (weight, found), before, version in rows:
            if found._version != version:
                self.used.append((weight, found))
            else:
                weight.grad = before

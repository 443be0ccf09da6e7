"""Deferred weight gradients: linear layers that record in I what W multiplies later.

    I   the input gradient at once; (output gradient, input) onto the tape
    W   for each entry, in order: gradient.T @ input, added to the weight's gradient

Every other parameter's gradient is computed in I and kept until W adds it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(slots=True)
class Tape:
    """What one microbatch's I leaves for its W, by the weight it belongs to.

    Every recording layer reads the anchor, so that asking for the anchor's gradient reaches
    them all, whatever else is asked for.
    """

    products: dict[int, list[tuple[nn.Parameter, Tensor, Tensor]]] = field(default_factory=dict)
    anchor: Tensor = field(default_factory=lambda: torch.zeros((), requires_grad=True))

    def record(self, weight: nn.Parameter, gradient: Tensor, activation: Tensor) -> None:
        entry = (weight, gradient.flatten(0, -2), activation.flatten(0, -2))
        self.products.setdefault(id(weight), []).append(entry)

    @torch.no_grad()
    def play(self) -> None:
        """Add all recorded products; a layer used twice sums its uses first."""
        for uses in self.products.values():
            weight = uses[0][0]
            total = _product(uses[0])
            for use in uses[1:]:
                total = total + _product(use)
            weight.grad = total if weight.grad is None else weight.grad.add_(total)
        self.products.clear()


def _product(use: tuple[nn.Parameter, Tensor, Tensor]) -> Tensor:
    _, gradient, activation = use
    return gradient.t() @ activation


class Recorder:
    """Which tape linear layers write to while a microbatch runs."""

    def __init__(self) -> None:
        self.tape: Tape | None = None

    def attach(self, module: nn.Module) -> frozenset[int]:
        """Let the linear layers within record; the ids of the weights they defer."""
        deferred = set()
        for child in module.modules():
            if type(child) is nn.Linear and child.weight.requires_grad:
                child.forward = partial(_forward, child, self)  # type: ignore[method-assign]
                deferred.add(id(child.weight))
        return frozenset(deferred)


def _forward(layer: nn.Linear, recorder: Recorder, value: Tensor) -> Tensor:
    if recorder.tape is None or not torch.is_grad_enabled() or value.dim() < 2:
        return functional.linear(value, layer.weight, layer.bias)
    out: Tensor = _Deferred.apply(  # type: ignore[no-untyped-call]
        value, layer.weight, layer.bias, recorder.tape.anchor, recorder.tape
    )
    return out


class _Deferred(torch.autograd.Function):
    """A linear layer whose backward computes all but the weight's gradient."""

    @staticmethod
    def forward(
        context: Any,
        value: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        _anchor: Tensor,
        tape: Tape,
    ) -> Tensor:
        context.save_for_backward(value, weight)
        context.tape, context.has_bias = tape, bias is not None
        return functional.linear(value, weight, bias)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        value, weight = context.saved_tensors
        needs_value, needs_weight, needs_bias, *_ = context.needs_input_grad
        if needs_weight:
            context.tape.record(weight, gradient, value)
        flat = gradient.flatten(0, -2)
        passed = (flat @ weight).view_as(value) if needs_value else None
        summed = flat.sum(0) if context.has_bias and needs_bias else None
        return passed, None, summed, None, None

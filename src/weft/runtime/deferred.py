"""Deferred weight gradients: layers that record in I what W computes later.

    I   the input gradient at once; (input, output gradient) onto the tape
    W   for each layer on the tape, in order: the gradients of its weights

Linear layers do so, and any layer that says how by two methods of its own (`Divided`). The
gradient of every other weight is computed in I and kept until W adds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

Grads: TypeAlias = Sequence[Tensor | None]


@runtime_checkable
class Divided(Protocol):
    """A layer of one input and one output that knows the two halves of its backward."""

    def input_grad(self, value: Tensor, gradient: Tensor) -> Tensor:
        """The gradient of its input, given the input and the gradient of its output."""

    def weight_grad(self, value: Tensor, gradient: Tensor) -> Grads:
        """The gradients of its parameters, in their order."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer at work: its forward and the halves of its backward, and what it trains."""

    forward: Callable[[Tensor], Tensor]
    input_grad: Callable[[Tensor, Tensor], Tensor]
    weight_grad: Callable[[Tensor, Tensor], Grads]
    weights: Sequence[nn.Parameter]

    @classmethod
    def of(cls, module: nn.Module) -> Layer | None:
        """The layer that a module is, unless its backward stays whole."""
        weights = [*module.parameters()]
        if type(module) is nn.Linear:
            passed, own = partial(_linear_input_grad, module), partial(_linear_weight_grad, module)
            return cls(module.forward, passed, own, weights)
        if isinstance(module, Divided):
            return cls(module.forward, module.input_grad, module.weight_grad, weights)
        return None

    @property
    def is_trained(self) -> bool:
        return any(weight.requires_grad for weight in self.weights)


def _linear_input_grad(layer: nn.Linear, value: Tensor, gradient: Tensor) -> Tensor:
    return (gradient.flatten(0, -2) @ layer.weight).view_as(value)


def _linear_weight_grad(layer: nn.Linear, value: Tensor, gradient: Tensor) -> Grads:
    flat = gradient.flatten(0, -2)
    return flat.t() @ value.flatten(0, -2), flat.sum(0)


@dataclass(slots=True)
class Tape:
    """What one microbatch's I leaves for its W."""

    uses: list[tuple[Layer, Tensor, Tensor]] = field(default_factory=list)

    @torch.no_grad()
    def play(self, others: Sequence[tuple[nn.Parameter, Tensor]]) -> None:
        """Add all gradients, and those given; several uses of a weight are summed first."""
        total: dict[nn.Parameter, Tensor] = {}
        for weight, grad in (*self._computed(), *others):
            total[weight] = total[weight] + grad if weight in total else grad
        for weight, grad in total.items():
            weight.grad = grad if weight.grad is None else weight.grad.add_(grad)
        self.uses.clear()

    def _computed(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        for layer, value, gradient in self.uses:
            grads = layer.weight_grad(value, gradient)
            for weight, grad in zip(layer.weights, grads, strict=False):  # a bias may be missing
                if grad is not None and weight.requires_grad:
                    yield weight, grad


class Recorder:
    """Which tape the layers of a stage write to while a microbatch runs.

    Every recording layer reads the anchor, so that asking for the anchor's gradient reaches
    them all, whatever else is asked for.
    """

    def __init__(self) -> None:
        self.tape: Tape | None = None
        self.anchor = torch.zeros((), requires_grad=True)

    def attach(self, module: nn.Module) -> bool:
        """Let the layers within record; whether there are any."""
        found = [(child, Layer.of(child)) for child in module.modules()]
        for child, layer in found:
            if layer is not None and layer.is_trained:
                child.forward = partial(_forward, layer, self)
        return any(layer is not None and layer.is_trained for _, layer in found)


def _forward(layer: Layer, recorder: Recorder, value: Tensor) -> Tensor:
    if recorder.tape is None or not torch.is_grad_enabled() or value.dim() < 2:
        return layer.forward(value)
    out: Tensor = _Deferred.apply(  # type: ignore[no-untyped-call]
        value, recorder.anchor, layer, recorder.tape
    )
    return out


class _Deferred(torch.autograd.Function):
    """A layer whose backward computes the gradient of its input alone."""

    @staticmethod
    def forward(context: Any, value: Tensor, _anchor: Tensor, layer: Layer, tape: Tape) -> Tensor:
        context.save_for_backward(value)
        context.layer, context.tape = layer, tape
        return layer.forward(value)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (value,) = context.saved_tensors
        context.tape.uses.append((context.layer, value, gradient))
        passed = context.layer.input_grad(value, gradient) if context.needs_input_grad[0] else None
        return passed, None, None, None

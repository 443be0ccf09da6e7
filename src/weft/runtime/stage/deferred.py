"""Deferred weight gradients: layers that record in I what W computes later.

    I   the input gradient at once; (input, output gradient) onto the tape
    W   for each layer on the tape, in order: the gradients of its weights

Linear layers do so, and any layer that says how by two methods of its own (`Divided`). The
gradient of every other weight is computed in I and kept until W adds it; so is that of a weight
with hooks, which see it whole, and of everything in a compiled graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from weft.runtime.stage.modules import entered, is_compiled

WeightGradients: TypeAlias = Sequence[Tensor | None]


@runtime_checkable
class Divided(Protocol):
    """A layer of one input and one output that knows the two halves of its backward.

    What else its forward gets, which is not a tensor, both get as well.
    """

    def input_grad(self, value: Tensor, gradient: Tensor, *others: Any) -> Tensor:
        """The gradient of its input, given the input and the gradient of its output."""

    def weight_grad(self, value: Tensor, gradient: Tensor, *others: Any) -> WeightGradients:
        """The gradients of its parameters, in their order."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer at work: its forward, the halves of its backward, and the weights that learn by it.

    It may compute with copies or versions of these.
    """

    module: nn.Module
    weights: tuple[nn.Parameter, ...]
    forward: Callable[..., Tensor]
    input_grad: Callable[[Tensor, Tensor], Tensor]
    weight_grad: Callable[[Tensor, Tensor], WeightGradients]

    @classmethod
    def of(cls, module: nn.Module) -> Layer | None:
        """The layer that a module is, unless its backward stays whole."""
        own = vars(module).get("forward")
        if isinstance(own, partial) and own.func is _forward:
            del module.forward  # it was to record for another pipeline
            own = None
        if own is not None or is_compiled(module):
            return None
        weights = tuple(module.parameters())
        if type(module) is nn.Linear:
            passed, own = partial(_linear_input_grad, module), partial(_linear_weight_grad, module)
            return cls(module, weights, module.forward, passed, own)
        if isinstance(module, Divided):
            return cls(module, weights, module.forward, module.input_grad, module.weight_grad)
        return None

    def given(self, others: Sequence[Any]) -> Layer:
        """The same for what its forward gets besides its input."""
        if not others:
            return self
        return replace(
            self,
            forward=lambda value: self.forward(value, *others),
            input_grad=lambda value, gradient: self.input_grad(value, gradient, *others),
            weight_grad=lambda value, gradient: self.weight_grad(value, gradient, *others),
        )

    def is_view(self, value: Tensor) -> bool:
        """Whether torch makes the output of a linear layer a view of rows, as hooks can see."""
        is_linear = type(self.module) is nn.Linear and self.module.bias is not None
        return is_linear and value.dim() == 3 and value.is_contiguous() and value.numel() > 0

    def is_deferrable(self, value: Tensor, whole: set[int]) -> bool:
        """Whether its weights' gradients can come later, and something learns by them.

        Those that are to stay `whole` have other uses, with which they are added up.
        """
        weights, is_linear = self.weights, type(self.module) is nn.Linear
        return (
            value.dim() >= 1
            and (not is_linear or _has_own_weights(self.module))
            and (not whole or whole.isdisjoint(map(id, weights)))
            and not value.is_complex()
            and any(weight.requires_grad for weight in weights)
            and not any(weight._backward_hooks for weight in weights)
            and torch._C._functorch.peek_interpreter_stack() is None
        )


def _has_own_weights(layer: nn.Module) -> bool:
    """Whether a linear layer's weight is a parameter that learns; some norms make it anew."""
    weight = layer._parameters.get("weight")
    is_own = layer._parameters.keys() == {"weight", "bias"} and not layer._modules
    return is_own and weight is not None and weight.requires_grad


def _linear_input_grad(layer: nn.Linear, value: Tensor, gradient: Tensor) -> Tensor:
    weight = layer.weight.to(gradient.dtype)  # another one only under autocast
    flat, rows = _flat(gradient), _flat(value)
    is_turned = rows.stride(0) == 1 and rows.stride(1) == rows.size(0)
    found = (weight.t() @ flat.t()).t() if is_turned else flat @ weight  # as autograd does
    return found.reshape(value.shape).to(value.dtype)


def _linear_weight_grad(layer: nn.Linear, value: Tensor, gradient: Tensor) -> WeightGradients:
    flat = _flat(gradient)
    bias = layer._parameters["bias"]
    return (
        flat.t() @ _flat(value).to(flat.dtype) if layer.weight.requires_grad else None,
        _bias_grad(value, gradient) if bias is not None and bias.requires_grad else None,
    )


def _bias_grad(value: Tensor, gradient: Tensor) -> Tensor:
    """Over all rows, in the order in which autograd adds them."""
    if value.dim() == 1:
        return gradient.clone()
    return gradient.sum([*range(gradient.dim() - 1)])


def _flat(value: Tensor) -> Tensor:
    """All rows of a value."""
    return value.flatten(0, -2) if value.dim() > 1 else value.unsqueeze(0)


@dataclass(slots=True)
class Tape:
    """What one microbatch's I leaves for its W."""

    uses: list[tuple[Layer, Tensor, Tensor]] = field(default_factory=list)
    is_open: bool = False  # while I runs; a backward inside a forward records nothing

    @torch.no_grad()
    def play(self, others: Sequence[tuple[nn.Parameter, Tensor]]) -> None:
        """Add all gradients, and those given; several uses of a weight are summed first."""
        total: dict[nn.Parameter, Tensor] = {}
        for weight, grad in self._computed():
            total[weight] = total[weight] + grad if weight in total else grad
        for weight, grad in others:
            total[weight] = total[weight].to(grad) + grad if weight in total else grad
        for weight, grad in total.items():
            accumulate(weight, grad)
        self.uses.clear()

    def _computed(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        for layer, value, gradient in self.uses:
            grads = layer.weight_grad(value, gradient)
            for weight, grad in zip(layer.weights, grads, strict=False):  # a bias may be missing
                if grad is not None and weight.requires_grad:
                    yield weight, grad


def accumulate(weight: nn.Parameter, grad: Tensor) -> None:
    """Add a gradient as autograd does, with the hooks that come after."""
    if weight.grad is None:
        weight.grad = grad.to(weight.dtype)
    else:
        weight.grad.add_(grad.to(weight.dtype))
    for hook in _hooks_after(weight).values():
        hook(weight)


def hooked(weight: nn.Parameter, grad: Tensor) -> Tensor:
    """A gradient as the hooks of its weight leave it."""
    for hook in dict(weight._backward_hooks or ()).values():
        changed = hook(grad)
        grad = grad if changed is None else changed
    return grad


def _hooks_after(weight: nn.Parameter) -> dict[int, Callable[[Tensor], None]]:
    hooks: Any = weight._post_accumulate_grad_hooks
    return hooks or {}


class Apart:
    """Lets a backward leave its gradients in the list, not in those that are there."""

    __slots__ = ("_before", "_hooks", "_kept", "_weights")

    def __init__(self, weights: Sequence[nn.Parameter]) -> None:
        self._weights, self._kept = weights, list[tuple[nn.Parameter, Tensor]]()

    def __enter__(self) -> list[tuple[nn.Parameter, Tensor]]:
        self._before = [weight.grad for weight in self._weights]
        found = [hooks for weight in self._weights if (hooks := _hooks_after(weight))]
        self._hooks = [(hooks, dict(hooks)) for hooks in found]
        for weight in self._weights:
            weight.grad = None
        for hooks in found:
            hooks.clear()  # they come after the gradient is added
        return self._kept

    def __exit__(self, *_: object) -> None:
        for hooks, calls in self._hooks:
            hooks.update(calls)
        for weight, before in zip(self._weights, self._before, strict=True):
            if weight.grad is not None:
                self._kept.append((weight, weight.grad))
            weight.grad = before


class Writing:
    """Lets a backward write to a tape, and whatever a checkpoint runs again in it."""

    __slots__ = ("_inner", "_recorder", "_tape")

    def __init__(
        self, recorder: Recorder, tape: Tape, inner: AbstractContextManager[object]
    ) -> None:
        self._recorder, self._tape, self._inner = recorder, tape, inner

    def __enter__(self) -> None:
        self._recorder.tape, self._tape.is_open = self._tape, True
        self._inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)
        self._recorder.tape, self._tape.is_open = None, False


class Recorder:
    """Which tape the layers of a stage write to while a microbatch runs.

    Every recording layer reads the anchor, so that a backward reaches it, whether or not its
    input needs a gradient.
    """

    def __init__(self) -> None:
        self.tape: Tape | None = None
        self.whole: set[int] = set()  # weights that are not deferred
        self.anchor = torch.zeros((), device="cpu", requires_grad=True)

    def __deepcopy__(self, memo: dict[int, object]) -> Recorder:
        return self  # of no use to a copy of the stage, which records for itself

    def recording(self, tape: Tape, inner: AbstractContextManager[object]) -> Writing:
        """Where a backward writes to a tape, inside of which it runs."""
        return Writing(self, tape, inner)

    def attach(self, module: nn.Module) -> bool:
        """Let the layers within record; whether there are any."""
        found = [layer for child in entered(module) if (layer := Layer.of(child)) is not None]
        for layer in found:
            layer.module.forward = partial(_forward, layer, self)
        return bool(found)


def _forward(layer: Layer, recorder: Recorder, /, *args: Any, **kwargs: Any) -> Tensor:
    tape = recorder.tape
    if tape is None or not torch.is_grad_enabled() or not _has_one_input(args, kwargs):
        return layer.forward(*args, **kwargs)
    value, *others = *args, *kwargs.values()
    if not isinstance(value, Tensor) or not layer.is_deferrable(value, recorder.whole):
        return layer.forward(*args, **kwargs)
    is_view = layer.is_view(value)
    out: Tensor = _Deferred.apply(value, recorder.anchor, layer.given(others), tape, is_view)  # type: ignore[no-untyped-call]
    return out.view(*value.shape[:-1], -1) if is_view else out


def _has_one_input(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a layer gets one tensor, and what else it gets is not a tensor and has no name."""
    is_named = len(kwargs) > (not args)
    return len(args) + len(kwargs) > 0 and not is_named and not any(map(_has_tensor, args[1:]))


def _has_tensor(given: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in tree_leaves(given))


class _Deferred(torch.autograd.Function):
    """A layer whose backward computes the gradient of its input alone."""

    @staticmethod
    def forward(
        context: Any, value: Tensor, _anchor: Tensor, layer: Layer, tape: Tape, is_flat: bool
    ) -> Tensor:
        context.save_for_backward(value)
        context.layer, context.tape = layer, tape
        out = layer.forward(value)
        shape = (out.numel() // out.shape[-1], out.shape[-1]) if is_flat else out.shape
        plain: Tensor = torch.ops.aten._unsafe_view(out, shape)  # which may be changed in place
        return plain

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (value,) = context.saved_tensors
        if context.tape.is_open:
            context.tape.uses.append((context.layer, value, gradient))
        passed = context.layer.input_grad(value, gradient) if context.needs_input_grad[0] else None
        return passed, None, None, None, None

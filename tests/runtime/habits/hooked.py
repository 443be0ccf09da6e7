"""Layers with hooks that change what passes, and write down what they saw."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.runtime.habits.layers import Lined


class Seen(list[tuple[str, float]]):
    """What hooks saw; copies of a module write into one."""

    def __deepcopy__(self, _memo: object) -> Seen:
        return self

    def note(self, kind: str, value: Tensor | None) -> None:
        if value is None:
            self.append((kind, 0.0))
        elif not value.is_meta:
            self.append((kind, float(value.detach().double().sum())))


class Watched(Lined):
    """A layer whose hooks write down what they saw."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = Seen()

    def forward(self, value: Tensor) -> Tensor:
        return self.line(value)


class WeightHook(Watched):
    """Halves the gradient of a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.line.weight.register_hook(self._halve)  # type: ignore[no-untyped-call]

    def _halve(self, gradient: Tensor) -> Tensor:
        self.seen.note("weight", gradient)
        return gradient * 0.5


class AccumulateHook(Watched):
    """Keeps a row of a weight as it is."""

    def __init__(self) -> None:
        super().__init__()
        weight: Any = self.line.weight
        weight.register_post_accumulate_grad_hook(self._mask)

    def _mask(self, weight: Tensor) -> None:
        assert weight.grad is not None
        weight.grad[0] = 0
        self.seen.note("accumulated", torch.ones(()))


class ForwardHook(Watched):
    def __init__(self) -> None:
        super().__init__()
        self.line.register_forward_hook(self._double)

    def _double(self, _module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        self.seen.note("forward", output)
        return output * 2


class PreHook(Watched):
    def __init__(self) -> None:
        super().__init__()
        self.line.register_forward_pre_hook(self._halve)

    def _halve(self, _module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        self.seen.note("forward", inputs[0])
        return (inputs[0] * 0.5,)


class BackwardHook(Watched):
    """Scales the gradient that a layer passes on."""

    def __init__(self) -> None:
        super().__init__()
        self.line.register_full_backward_hook(self._scale)

    def _scale(self, _module: nn.Module, passed: Any, given: Any) -> Any:
        self.seen.note("backward", given[0])
        return tuple(None if grad is None else grad * 0.5 for grad in passed)


class BackwardPreHook(Watched):
    """Scales the gradient that a layer is given."""

    def __init__(self) -> None:
        super().__init__()
        self.line.register_full_backward_pre_hook(self._scale)

    def _scale(self, _module: nn.Module, given: Any) -> Any:
        self.seen.note("backward", given[0])
        return tuple(grad * 0.5 for grad in given)


class ValueHook(Watched):
    """A hook on a value of every forward."""

    def forward(self, value: Tensor) -> Tensor:
        out = self.line(value)
        if out.requires_grad:
            out.register_hook(self._bound)
        return out

    def _bound(self, gradient: Tensor) -> Tensor:
        self.seen.note("backward", gradient)
        return gradient.clamp(-0.1, 0.1)

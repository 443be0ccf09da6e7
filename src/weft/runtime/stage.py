"""A stage at work: one copy of one slice of the model, and what its microbatches have left.

Knows autograd; knows neither devices nor schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.func import functional_call

from weft.runtime.deferred import Recorder, Tape
from weft.runtime.randomness import Draw
from weft.runtime.stash import Stash, following

Values: TypeAlias = tuple[Tensor, ...]
Gradients: TypeAlias = Sequence[Tensor | None]
Passed: TypeAlias = tuple[Tensor | None, ...]
Loss: TypeAlias = Callable[[Tensor, int], Tensor]
Versions: TypeAlias = tuple[int, ...]


@dataclass(slots=True)
class Saved:
    """What a forward keeps: its inputs, and its outputs with their graph unless recomputed."""

    inputs: Values
    outputs: Values = ()
    tape: Tape | None = None  # of layers that defer their weight gradients
    versions: Versions = ()  # of the weights
    gradients: list[tuple[nn.Parameter, Tensor]] = field(default_factory=list)


class Stage:
    """One copy of one stage.

    `loss(output, microbatch)` is set on the last stage only: its forward ends with the
    microbatch's weighted loss. Where a stage is split, some backwards come in two halves: these
    defer their weight gradients.

    With `stashes` a forward computes with the `versions` of them that are set, and its backward
    with the same, unless it `is_stashing` nothing: then with the newest.
    """

    def __init__(
        self,
        module: nn.Module,
        draw: Draw,
        *,
        is_first: bool,
        is_split: bool,
        is_recomputed: bool,
    ) -> None:
        self.module = module
        self._is_first = is_first
        self.loss: Loss | None = None
        self._draw = draw
        self._is_recomputed = is_recomputed
        self._recorder = Recorder()
        self._is_deferring = is_split and self._recorder.attach(module)
        self._weights = [weight for weight in module.parameters() if weight.requires_grad]
        self._saved: dict[int, Saved] = {}
        self.stashes: Sequence[Stash] = ()
        self.versions: Versions = ()
        self.is_stashing = True
        self.dtype: torch.dtype | None = None  # of values, where that is not the data's
        self._device = next((p.device for p in module.parameters()), torch.device("cpu"))

    def forward(
        self, microbatch: int, inputs: Sequence[Tensor], *, is_divided: bool = False
    ) -> Values:
        """The outputs that go to other stages; the weighted loss on the last stage."""
        saved = self._saved[microbatch] = Saved(tuple([self._leaf(value) for value in inputs]))
        if is_divided and self._is_deferring:
            saved.tape = Tape()
        if self.stashes and self.is_stashing:
            saved.versions = self.versions
            for stash, version in zip(self.stashes, saved.versions, strict=True):
                stash.take(version)
        if self._is_recomputed:
            with torch.no_grad():
                outputs = self._run(microbatch, saved, self._leaves(saved))
            return tuple(value.detach() for value in outputs)
        saved.outputs = self._run_kept(microbatch, saved)
        return tuple([value.detach() for value in saved.outputs])

    def infer(self, microbatch: int, inputs: Sequence[Tensor]) -> Values:
        """The outputs alone: nothing is kept for a backward."""
        given = Saved(tuple(map(self._here, inputs)))
        swap = {name: w for stash in self.stashes for name, w in stash.seen().items()}
        with torch.no_grad():
            return self._run(microbatch, given, swap)

    def recompute(self, microbatch: int) -> None:
        """The forward again, from the stored inputs; buffers are not touched twice."""
        saved = self._saved[microbatch]
        buffers = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        saved.outputs = self._run_kept(microbatch, saved, buffers)

    def backward(
        self, microbatch: int, gradients: Sequence[Tensor | None]
    ) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs; those of the weights are added to what is there."""
        saved = self._saved.pop(microbatch)
        outputs, grads = _differentiable(saved.outputs, self._all_here(gradients))
        if outputs:
            _backward(outputs, grads)
        if saved.versions:
            for stash, version in zip(self.stashes, saved.versions, strict=True):
                stash.give_back(version)
        return tuple([value.grad for value in saved.inputs])

    def input_grad(
        self, microbatch: int, gradients: Sequence[Tensor | None]
    ) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs; what the weights need is kept for `weight_grad`."""
        saved = self._saved[microbatch]
        inputs = [value for value in saved.inputs if value.requires_grad]
        wanted = [*inputs, *self._weights, self._recorder.anchor]
        outputs, grads = _differentiable(saved.outputs, self._all_here(gradients))
        found: Sequence[Tensor | None] = [None] * len(wanted)
        if outputs:
            found = torch.autograd.grad(outputs, wanted, grads, allow_unused=True)
        passed = iter(found[: len(inputs)])
        kept = zip(self._weights, found[len(inputs) : -1], strict=True)
        saved.gradients = [(weight, grad) for weight, grad in kept if grad is not None]
        saved.outputs = ()
        return tuple(next(passed) if value.requires_grad else None for value in saved.inputs)

    def weight_grad(self, microbatch: int) -> None:
        """Add what `input_grad` kept to the gradients of the weights."""
        saved = self._saved.pop(microbatch)
        (saved.tape or Tape()).play(saved.gradients)

    def forget(self) -> None:
        """Drop what is left of a step that did not end."""
        self._saved.clear()
        for stash in self.stashes:
            stash.forget()

    def _leaf(self, value: Tensor) -> Tensor:
        """A value without history that collects its gradient, unless data or whole numbers."""
        leaf = self._here(value).detach()
        if not self._is_first and leaf.is_floating_point():
            leaf.requires_grad_()
        return leaf

    def _here(self, value: Tensor) -> Tensor:
        """A value on the device of this stage's weights, of the type that it computes with."""
        if self.dtype is not None and value.is_floating_point():
            return value.to(self._device, self.dtype)
        return value if value.device == self._device else value.to(self._device)

    def _all_here(self, gradients: Gradients) -> Gradients:
        return [None if gradient is None else self._here(gradient) for gradient in gradients]

    @property
    def in_flight(self) -> int:
        return len(self._saved)

    def _leaves(self, saved: Saved) -> dict[str, Tensor]:
        """The weights of a forward, where there are versions of them."""
        if self.is_stashing:
            versions = zip(self.stashes, saved.versions, strict=True)
            return {n: leaf for stash, v in versions for n, leaf in stash.leaves(v).items()}
        return {n: w for stash in self.stashes for n, w in stash.leaves(stash.newest).items()}

    def _run_kept(
        self, microbatch: int, saved: Saved, buffers: dict[str, Tensor] | None = None
    ) -> Values:
        """A forward whose graph is kept for the backward."""
        if not self.stashes:
            return self._run(microbatch, saved, buffers or {})
        swap = self._leaves(saved) | (buffers or {})
        with nullcontext() if self.is_stashing else following(self.stashes):
            return self._run(microbatch, saved, swap)

    def _run(self, microbatch: int, saved: Saved, swap: dict[str, Tensor]) -> Values:
        """A forward with these weights and buffers in place of the module's own."""
        self._draw.enter(microbatch)
        self._recorder.tape = saved.tape
        inputs = saved.inputs
        try:
            out = functional_call(self.module, swap, inputs) if swap else self.module(*inputs)
            values = out if isinstance(out, tuple) else (out,)
            return (self.loss(values[0], microbatch),) if self.loss else values
        finally:
            self._recorder.tape = None


def _differentiable(
    outputs: Values, gradients: Gradients
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Outputs that have a gradient to pass on, and those gradients."""
    roots, grads = [], []
    for value, grad in zip(outputs, gradients, strict=True):
        if value.requires_grad and (grad is not None or value.dim() == 0):
            roots.append(value)
            grads.append(grad)
    return roots, grads


def _backward(outputs: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
    """As torch.autograd.backward, whose checks in Python take longer than a small stage."""
    given = [
        torch.ones_like(output) if grad is None else grad
        for output, grad in zip(outputs, grads, strict=True)
    ]
    Variable._execution_engine.run_backward(
        tuple(outputs), tuple(given), False, False, (), allow_unreachable=True, accumulate_grad=True
    )

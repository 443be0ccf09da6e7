"""Trials: a stage that runs microbatches in one way, again and again.

Several of them are in flight, as in a run: all forwards come first, so that a backward does not
find in the caches what its own forward has just left there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from weft.ir.kinds import Kind
from weft.runtime.profile.memory import Kept, gradient_bytes, size_of, state_bytes
from weft.runtime.profile.sample import MakeOptimizer
from weft.runtime.stage.stage import Stage
from weft.runtime.stage.values import Value

Way: TypeAlias = tuple[Kind, ...]  # kinds of action, in their order

FIELDS = {
    Kind.F: "forward",
    Kind.B: "backward",
    Kind.I: "input_grad",
    Kind.W: "weight_grad",
    Kind.R: "recompute",
}


class Trial:
    """One stage, and the calls that are timed on it."""

    def __init__(self, stage: Stage, way: Way, inputs: Sequence[Value], in_flight: int) -> None:
        self._stage, self._inputs, self._in_flight = stage, inputs, in_flight
        self._optimizer: Optimizer | None = None
        self._device = next((w.device for w in stage.module.parameters()), torch.device("cpu"))
        kept = Kept(stage.module)
        forward = partial(stage.forward, is_divided=Kind.I in way, is_recomputed=Kind.R in way)
        with kept.counting():
            output = forward(0, inputs)
            if Kind.R in way:
                stage.recompute(0)
        stage.forget()
        self._saved = kept.size
        gradients = [None if stage.loss else _gradient(value) for value in output.leaves]
        calls: dict[Kind, Callable[[int], object]] = {
            Kind.F: lambda microbatch: forward(microbatch, inputs),
            Kind.R: stage.recompute,
            Kind.B: lambda microbatch: stage.backward(microbatch, gradients),
            Kind.I: lambda microbatch: stage.input_grad(microbatch, gradients),
            Kind.W: stage.weight_grad,
        }
        self._calls = {FIELDS[kind]: calls[kind] for kind in way}

    def prepare(self, optimizer: MakeOptimizer | None) -> None:
        """Step an optimizer behind every run, if there is one and anything to learn."""
        learning = [(n, w) for n, w in self._stage.module.named_parameters() if w.requires_grad]
        if optimizer is not None and learning:
            self._optimizer = optimizer(learning)

    def run(self) -> dict[str, list[float]]:
        """Seconds by field of Times, of every microbatch."""
        forward, *rest = self._calls
        timed: dict[str, list[float]] = {name: [] for name in self._calls}
        for names in ([forward], rest):
            for microbatch in range(self._in_flight):
                for name in names:
                    timed[name].append(self._seconds(self._calls[name], microbatch))
        self._stage.forget()
        return timed | self._update()

    def _update(self) -> dict[str, list[float]]:
        if self._optimizer is None:
            return {}
        for weight in self._stage.module.parameters():
            if weight.grad is not None:
                weight.grad.zero_()  # so that steps lead nowhere, and gradients are added
        if not self._stage.stashes:
            return {"update": [self._seconds(self._optimizer.step)]}
        (stash,) = self._stage.stashes
        step: Callable[[], object] = self._optimizer.step
        taken = self._seconds(lambda: stash.update(step))
        self._stage.versions = (stash.newest,)
        return {"update": [taken]}

    def sizes(self) -> dict[str, float]:
        """Bytes by field of Memory."""
        module = self._stage.module
        found = {
            "weights": size_of(module.parameters()),
            "gradients": gradient_bytes(module),
            "optimizer": state_bytes(self._optimizer) if self._optimizer else 0,
            "saved": self._saved,
            "inputs": size_of(leaf for value in self._inputs for leaf in value.leaves),
        }
        return {name: float(size) for name, size in found.items()}

    def _seconds(self, call: Callable[..., object], *words: int) -> float:
        self._settle()
        began = time.perf_counter()
        call(*words)
        self._settle()
        return time.perf_counter() - began

    def _settle(self) -> None:
        """A GPU runs behind its host; wait for it."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _gradient(value: Tensor) -> Tensor | None:
    return torch.randn_like(value) if value.is_floating_point() else None

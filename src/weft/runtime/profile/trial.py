"""Trials: a stage that runs microbatches in one way, repeatedly.

Several of them are in flight, as in a run: all forwards come first, so that a backward does not
find in the caches what its own forward has just left there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import TypeAlias

import torch
from torch import Tensor

from weft.ir.kinds import Kind
from weft.runtime.profile.memory import SavedBytes, copied_bytes, gradient_bytes, size_of
from weft.runtime.profile.sample import seconds
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
        self._device = next((w.device for w in stage.module.parameters()), stage.role.device)
        copies = (stash.leaves(stash.newest).values() for stash in stage.role.stashes)
        kept = SavedBytes(chain(stage.module.parameters(), *copies))
        self._forward = partial(
            stage.forward, is_divided=Kind.I in way, is_recomputed=Kind.R in way
        )
        with kept.counting():
            output = self._run_forward(0)
            if Kind.R in way:
                stage.recompute(0)
        stage.forget()
        self._saved = kept.size
        gradients = [None if stage.role.loss else _gradient(value) for value in output.leaves]
        calls: dict[Kind, Callable[[int], object]] = {
            Kind.F: self._run_forward,
            Kind.R: stage.recompute,
            Kind.B: lambda microbatch: stage.backward(microbatch, gradients),
            Kind.I: lambda microbatch: stage.input_grad(microbatch, gradients),
            Kind.W: stage.weight_grad,
        }
        self._calls = {FIELDS[kind]: calls[kind] for kind in way}

    def run(self) -> dict[str, list[float]]:
        """Seconds by field of Times, of every microbatch."""
        forward, *rest = self._calls
        timed: dict[str, list[float]] = {name: [] for name in self._calls}
        for names in ([forward], rest):
            for microbatch in range(self._in_flight):
                for name in names:
                    call = partial(self._calls[name], microbatch)
                    timed[name].append(seconds(self._device, call))
        self._stage.forget()
        return timed

    def _run_forward(self, microbatch: int) -> Value:
        newest = tuple(stash.newest for stash in self._stage.role.stashes)
        return self._forward(microbatch, self._inputs, versions=newest)

    def sizes(self) -> dict[str, float]:
        """Bytes by field of Memory, without the optimizer's."""
        module, precision = self._stage.module, self._stage.role.precision
        found = {
            "weights": size_of(module.parameters()) + copied_bytes(module, precision),
            "gradients": gradient_bytes(module),
            "saved": self._saved,
            "inputs": size_of(leaf for value in self._inputs for leaf in value.leaves),
        }
        if self._device.type == "cuda":
            found["scratch"] = self._scratch()
        return {name: float(size) for name, size in found.items()}

    def _scratch(self) -> int:
        """The most that a call needs besides what is there before it, or left after it."""
        most = 0
        for call in self._calls.values():
            torch.cuda.reset_peak_memory_stats(self._device)
            before = torch.cuda.memory_allocated(self._device)
            call(0)
            held = max(before, torch.cuda.memory_allocated(self._device))
            most = max(most, torch.cuda.max_memory_allocated(self._device) - held)
        self._stage.forget()
        return most


def _gradient(value: Tensor) -> Tensor | None:
    return torch.randn_like(value) if value.is_floating_point() else None

"""The criterion: the weighted loss of each microbatch in flight, and where it is reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from weft.ir.program import Program
from weft.runtime.lane.steps import Loss
from weft.runtime.ranks.losses import LossReports
from weft.runtime.stage.values import Value

LossFunction: TypeAlias = Callable[..., Tensor]  # of the output and the target of a microbatch


class Criterion:
    """A user's loss with the target, the weight and the scale of each microbatch, by number."""

    def __init__(self, loss: LossFunction, device: torch.device) -> None:
        self.loss, self._device = loss, device
        self._targets: dict[int, Value] = {}
        self._weights: dict[int, float] = {}
        self._scale_of: dict[int, Callable[[], float]] = {}
        self._scales: dict[int, float] = {}

    def begin(
        self, number: int, target: Value, weight: float, scale: Callable[[], float] | None = None
    ) -> None:
        """Take what a microbatch is judged by; its scale may only be known when it is needed."""
        self._targets[number], self._weights[number] = target, weight
        if scale is None:
            self._scale_of.pop(number, None)
            self._scales.pop(number, None)
        else:
            self._scale_of[number] = scale

    def __call__(self, output: Any, number: int) -> Tensor:
        """The loss of a microbatch, as it is differentiated."""
        wanted = self._targets[number].to(self._device).arguments
        loss = self.loss(output, *wanted) * self._weights[number]
        if number in self._scale_of:
            scale = self._scales[number] = self._scale_of[number]()
            loss = loss * scale
        return loss

    def unscaled(self, number: int, loss: Loss) -> Loss:
        """A loss as the user sees it."""
        return loss / self._scales[number] if number in self._scales else loss


class Reports:
    """Losses of the steps under way, sent to every rank once this process has all of its own.

    `due` is how many of a step this process computes.
    """

    def __init__(self, reports: LossReports, due: int) -> None:
        self._reported, self._due = reports, due
        self._runs: dict[int, int] = {}  # the number of each step among all runs
        self._found: dict[int, dict[int, Loss]] = {}

    def begin(self, step: int, run: int) -> None:
        self._runs[step] = run
        self._found[step] = {}
        if not self._due:
            del self._runs[step], self._found[step]

    def add(self, step: int, microbatch: int, loss: Loss) -> None:
        """Take a loss; one that a device may still compute waits until `send_complete`."""
        found = self._found[step]
        found[microbatch] = loss
        if len(found) == self._due and not any(isinstance(one, Tensor) for one in found.values()):
            self._send(step)

    def send_complete(self) -> None:
        """Send what is complete."""
        for step in [step for step, found in self._found.items() if len(found) == self._due]:
            self._send(step)

    def forget(self) -> None:
        """A step has failed."""
        self._runs.clear()
        self._found.clear()

    def _send(self, step: int) -> None:
        self._reported.report(self._runs.pop(step), self._found.pop(step))


def losses_due(program: Program, devices: range) -> int:
    """How many losses of a step these devices compute."""
    last = [stage for stage, after in enumerate(program.graph.successors) if not after]
    return sum(
        int(program.placement.table[pipe, stage]) in devices
        for pipe in program.pipe_of
        for stage in last
    )

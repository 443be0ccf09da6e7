"""The criterion: the weighted loss of each microbatch in flight, and where it is reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from weft.ir.program import Program
from weft.runtime.lane.steps import Loss
from weft.runtime.ranks.losses import LossReports
from weft.runtime.stage.values import Value

LossFunction: TypeAlias = Callable[..., Tensor]  # of the output and the target of a microbatch


class Terms(NamedTuple):
    """What a microbatch is judged by."""

    target: Value
    weight: float
    scale: float | None


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

    def terms(self, number: int) -> Terms:
        """What a microbatch is judged by; its loss is reported without this scale."""
        scale = None
        if number in self._scale_of:
            scale = self._scales[number] = self._scale_of[number]()
        return Terms(self._targets[number], self._weights[number], scale)

    def __call__(self, output: Any, number: int) -> Tensor:
        """The loss of a microbatch, as it is differentiated."""
        target, weight, scale = self.terms(number)
        loss = self.loss(output, *target.to(self._device).arguments) * weight
        return loss if scale is None else loss * scale

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
        """Take a loss, which a device may still compute."""
        found = self._found[step]
        found[microbatch] = loss
        if len(found) == self._due:
            self._reported.report(self._runs.pop(step), self._found.pop(step))

    def forget(self) -> None:
        """A step has failed."""
        self._runs.clear()
        self._found.clear()


def losses_due(program: Program, devices: range) -> int:
    """How many losses of a step these devices compute."""
    last = [stage for stage, after in enumerate(program.graph.successors) if not after]
    return sum(
        int(program.placement.table[pipe, stage]) in devices
        for pipe in program.pipe_of
        for stage in last
    )

"""The criterion: the weighted loss of each microbatch in flight, and where it is reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from weft.ir.program import Program
from weft.runtime.lane.steps import Loss
from weft.runtime.lent import LentValues
from weft.runtime.losses import LossFunction, LossShare, Parts
from weft.runtime.ranks.losses import LossReports
from weft.runtime.stage.rows import joined
from weft.runtime.stage.values import Value

See: TypeAlias = Callable[[int, Any], None]  # a microbatch, and what the last stage returned for it


class Terms(NamedTuple):
    """What a microbatch is judged by."""

    target: Value
    share: LossShare
    scale: float | None


class Criterion:
    """A user's loss with the target, the share and the scale of each microbatch, by number.

    Where somebody wants to `see` outputs, they are not judged: their loss is zero.
    """

    def __init__(
        self, loss: LossFunction, device: torch.device, *, is_whole_batch: bool = False
    ) -> None:
        self.loss, self._device, self._is_whole = loss, device, is_whole_batch
        self.see: See | None = None
        self.targets = LentValues()
        self._shares: dict[int, LossShare] = {}
        self._scale_of: dict[int, Callable[[], float]] = {}
        self._scales: dict[int, float] = {}

    def begin(
        self,
        number: int,
        target: Value,
        share: LossShare,
        scale: Callable[[], float] | None = None,
        *,
        is_lent: bool = False,
    ) -> None:
        """Take what a microbatch is judged by; its scale may only be known when it is needed."""
        self.targets.give(number, target, is_lent=is_lent)
        self._shares[number] = share
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
        if self._is_whole:
            target = joined(self.targets.read_all(), "the loss")
            return Terms(target, LossShare(1.0, 1.0), scale)
        return Terms(self.targets.read(number), self._shares[number], scale)

    def judges_by(self, number: int) -> Sequence[Tensor]:
        """The target of a microbatch, as its user gave it."""
        target = self.targets.peek(number)
        return () if target is None else target.leaves

    def __call__(self, output: Any, number: int) -> Tensor:
        """The loss of a microbatch, as it is differentiated."""
        if self.see is not None:
            self.see(number, output)
            return torch.zeros((), device="cpu")
        target, share, scale = self.terms(number)
        parts = Parts.of(self.loss(output, *target.to(self._device).arguments))
        loss = parts.weighted(share, output)
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

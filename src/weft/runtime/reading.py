"""Reading: forwards alone, of a batch that teaches nothing."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from weft.ir.program import Program
from weft.runtime.criterion import Reports, See, losses_due
from weft.runtime.lane.lanes import Lanes
from weft.runtime.lane.steps import Loss
from weft.runtime.losses import LossShare
from weft.runtime.ranks.clock import Recording
from weft.runtime.ranks.losses import RunLosses
from weft.runtime.setting import Setting
from weft.runtime.stage.values import Value


class Reading:
    """The stages of a process, evaluated."""

    def __init__(self, lanes: Lanes, setting: Setting) -> None:
        self._lanes = lanes
        self._world, self._stages, self._shapes, self._criterion, self._draw, self._record = setting
        world = setting.world
        self.program: Program = lanes.binder.program
        self._reports = Reports(world.losses, losses_due(self.program, world.devices))
        lanes.binder.batch.on_loss = self._on_loss
        self.steps = 0

    def step(
        self,
        inputs: Sequence[Value],
        targets: Sequence[Value] | None,
        shares: Sequence[LossShare],
        run: int,
    ) -> tuple[RunLosses, Recording]:
        """The losses of a batch; nothing that is in flight may have its numbers."""
        if targets is not None:
            for number, target in enumerate(targets):
                self._criterion.begin(number, target, shares[number])
        return self._run(inputs, targets, run)

    def watch(
        self, inputs: Sequence[Value], targets: Sequence[Value] | None, see: See, run: int
    ) -> None:
        """Let somebody see what the last stages here return, in place of the loss."""
        self._criterion.see = see
        try:
            self._run(inputs, targets, run)
            self._world.transport.end()
        finally:
            self._criterion.see = None

    def _run(
        self, inputs: Sequence[Value], targets: Sequence[Value] | None, run: int
    ) -> tuple[RunLosses, Recording]:
        self._shapes.begin(inputs, targets)
        for stage in self._stages:
            stage.begin_reading()
        for number, one in enumerate(inputs):
            self._draw.places[number] = (self._draw.step, number)
            self._lanes.binder.batch.give(number, one)
        known = self._world.losses.open(run, len(inputs))
        self._reports.begin(self.steps, run)
        recording = self._record()
        self._lanes.run((self.steps + 1) * len(inputs), recording)
        self.steps += 1
        return known, recording

    @property
    def outlined(self) -> Sequence[nn.Module]:
        """The stages of all ranks, by which shapes are known."""
        return self._shapes.stages

    def close(self) -> None:
        self._lanes.close()

    def _on_loss(self, lap: int, number: int, loss: Loss) -> None:
        self._reports.add(lap, number, loss)

"""Training: batches come, microbatches run as far as they reach, weights are updated.

    synchronous    a step runs its whole program, and ends with its update; where copies of a stage
                   share that, its weights are whole once the next step, or `finish`, needs them
    asynchronous   a step takes the microbatches of one update; what they cannot finish yet stays in
                   flight, and `drain` finishes it

Weights of each microbatch are of the versions that the program says, drained or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from torch import Tensor

from weft.errors import NonfiniteError, WeftError
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.runtime.criterion import Reports, losses_due
from weft.runtime.lane.lanes import Lanes
from weft.runtime.lane.steps import Loss
from weft.runtime.losses import LossShare
from weft.runtime.ranks.clock import Recording
from weft.runtime.ranks.losses import RunLosses
from weft.runtime.result import Flight
from weft.runtime.setting import Setting
from weft.runtime.stage.values import Value
from weft.runtime.weights.weights import Weights

RECORDED = 64  # updates after each drain whose actions are recorded


class Training:
    """The stages of a process, trained by a program."""

    def __init__(self, lanes: Lanes, weights: Weights, setting: Setting) -> None:
        self._lanes, self._weights, self._policy = lanes, weights, weights.policy
        self._world, self._stages, self._shapes, self._criterion, self._draw, self._record = setting
        self._ring, world = lanes.binder.ring, setting.world
        self._count = self._ring.source.microbatches
        self._reports = Reports(world.losses, losses_due(self._ring.source, world.devices))
        lanes.binder.batch.on_loss = self._on_loss
        self._is_judged_once = self._ring.is_periodic and not _judges_again(self._ring.program)
        stale = weights.policy.updating.staleness
        self._warmup = stale.warmup if stale else 0
        self.steps = 0  # that batches were given for
        self.is_new = True  # nothing was trained in this process yet
        self._is_broken = False
        self._begin_flight()

    def step(
        self,
        inputs: Sequence[Value],
        targets: Sequence[Value] | None,
        shares: Sequence[LossShare],
        run: int,
        *,
        is_carried: bool,
    ) -> tuple[RunLosses, Recording | None]:
        """Take the microbatches of one update, and run as far as they reach."""
        if self._is_broken:
            raise WeftError(self._broken)
        step, origin = self.steps, self._policy.origin
        first = (step - origin) * self._count
        numbers = [(first + index) % self._ring.numbers for index in range(self._count)]
        self._take(numbers, inputs, targets)
        self._weights.begin()
        batch, is_lent = self._lanes.binder.batch, self._ring.is_periodic
        for index, number in enumerate(numbers):
            self._draw.places[number] = (step, index)
            batch.give(number, inputs[index], is_lent=is_lent)
            scale = partial(self._policy.scale, step) if self._policy.scaling else None
            if targets is not None and number in batch.judged:
                share = shares[index]
                self._criterion.begin(number, targets[index], share, scale, is_lent=is_lent)
        known = self._world.losses.open(run, self._count)
        self._policy.begin(step, known, is_carried=is_carried)
        self._reports.begin(step, run)
        recording = self._run(first)
        self.steps, self.is_new = step + 1, False
        self._draw.step = self.steps
        return known, recording

    def _take(
        self, numbers: Sequence[int], inputs: Sequence[Value], targets: Sequence[Value] | None
    ) -> None:
        """Look at the shapes of a batch, and at what may have changed in the stages."""
        if self._ring.is_periodic:
            self._shapes.go_on(numbers, inputs, targets)
        else:
            self._shapes.begin(inputs, targets)
        for stage in self._stages:
            stage.begin_training()

    def _run(self, first: int) -> Recording | None:
        if not self._ring.is_periodic:
            recording = self._record()
            try:
                self._lanes.run(first + self._count, recording)
            except BaseException:
                self._is_broken = self._policy.give_up(self.steps)
                self._weights.give_up()
                self._reports.forget()
                raise
            return recording
        self._is_broken = True
        is_recorded = first < self._recorded_until + self._ring.numbers  # what is in flight, too
        self._lanes.run(first + self._count, self._recording if is_recorded else self._record())
        self._lanes.binder.batch.inputs.keep()
        self._criterion.targets.keep()
        self._is_broken = False
        self._forget()
        return None

    def settle(self) -> tuple[Tensor | None, bool]:
        """End a synchronous step: the norm of its gradients, and whether its update was skipped.

        Gathers may still be under way.
        """
        step, policy = self.steps - 1, self._policy
        if policy.keeps_gradients:
            for group in self._weights.all_groups:
                group.apply(step)
        verdict = policy.verdict(step, next(iter(policy.senders), -1))
        policy.forget(self.steps)
        if policy.refusal is not None:
            self.finish()
            self._weights.give_up()
            raise NonfiniteError(policy.refusal)
        if not self._lanes.are_gathering:
            self._world.transport.end()
        return verdict.norm, not verdict.is_good

    @property
    def are_gathering(self) -> bool:
        """Whether weights may not be whole yet, as a synchronous step has left gathers."""
        return self._lanes.are_gathering

    def finish(self) -> None:
        """Wait for the gathers that a synchronous step has left to the next one."""
        if self._lanes.are_gathering:
            self._lanes.finish()
            self._world.transport.end()

    # asynchronous programs

    @property
    def is_warming_up(self) -> bool:
        """Whether the step that was taken last is synchronous."""
        return self.steps <= self._warmup

    def drain(self) -> Flight:
        """Finish what is in flight, with its updates."""
        if self._is_broken:
            raise WeftError(self._broken)
        self._is_broken = True
        given = (self.steps - self._policy.origin) * self._count
        self._lanes.drain(given, self._recording)
        self._world.transport.end()
        self._is_broken = False
        landed = self._landed()
        if not self._ring.source.is_stashing:
            self.restart()  # older versions, which the next forwards would use, are not kept
        return landed

    def restart(self) -> None:
        """Let the next step be the first of the program."""
        self._weights.restart(self.steps)
        self._lanes.restart()
        self._begin_flight()

    @property
    def position(self) -> int:
        """Steps since the program began."""
        return self.steps - self._policy.origin

    def resume(self, steps: int, position: int) -> None:
        """Go on after as many steps, all drained; the program began `position` steps before that.

        As it repeats, a position that comes to the same as a much later one will do.
        """
        if self._ring.is_periodic:
            position = self._ring.settled(position)
        self._weights.resume(steps, position)
        self.steps, self._is_broken = steps, False
        self._lanes.restart()
        self._lanes.skip(position * self._count)
        self._begin_flight()

    @property
    def _broken(self) -> str:
        """What an earlier step has lost."""
        if self._ring.is_periodic:
            return "an earlier step failed with microbatches in flight; begin anew"
        return (
            "an earlier step failed, and with it the gradients that waited for its update"
            " (update=False) are lost; load a save, or begin anew"
        )

    def _begin_flight(self) -> None:
        self._since = self.steps - self._policy.origin
        self._recorded_until = (self._since + RECORDED) * self._count
        self._recording = self._record()

    def _landed(self) -> Flight:
        """What has run since the last drain."""
        updates = self.steps - self._policy.origin - self._since
        landed = Flight(updates, self._ring, self._recording, self._since, RECORDED)
        self._begin_flight()
        return landed

    def _forget(self) -> None:
        """Drop what is known of updates that are over in all groups of this process."""
        newest = [group.store.newest for group in self._weights.all_groups]
        self._policy.forget(min(newest, default=self.steps))

    def close(self) -> None:
        self._lanes.close()

    def _on_loss(self, lap: int, number: int, loss: Loss) -> None:
        step, index = self._draw.places[number]
        self._reports.add(step, index, self._criterion.unscaled(number, loss))
        if self._is_judged_once:  # copies of the targets of several steps would add up
            self._criterion.targets.drop(number)


def _judges_again(program: Program) -> bool:
    """Whether a last stage is recomputed, and its loss with it."""
    actions = program.actions
    is_last = np.array([not after for after in program.graph.successors])
    return bool(((actions.kind == Kind.R) & is_last[actions.stage]).any())

"""Pipeline: a verified program trains the user's modules.

    pipeline = Pipeline(stages, program, loss=loss_fn, optimizer=lambda named: AdamW(...))
    result = pipeline.step(batch, target)

In a process group each rank runs one device; without one, all devices run in this process. Where
the program is asynchronous, a step is an update, and what it leaves in flight runs with the next
ones; `drain` finishes it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from weft.cost import Cost
from weft.errors import Disagreement, InputError, NonfiniteError
from weft.ir.program import Program
from weft.lower import unwired
from weft.runtime.assembly import Assembly, Task, agreed
from weft.runtime.batch import Data, checksum, cut, weights_of
from weft.runtime.criterion import LossFunction
from weft.runtime.device.place import current, devices_here
from weft.runtime.ranks.blame import failure_of
from weft.runtime.ranks.carriers import Carrier
from weft.runtime.ranks.clock import Recording
from weft.runtime.ranks.losses import RunLosses
from weft.runtime.ranks.world import World, world_of
from weft.runtime.result import Flight, Result
from weft.runtime.stage.captures import CudaGraphs
from weft.runtime.stage.values import Value
from weft.runtime.suit import check_capturable
from weft.runtime.weights.options import (
    Factories,
    NamedParameters,
    Nonfinite,
    Scope,
    Staleness,
    Updating,
)
from weft.runtime.weights.scaling import Scale
from weft.timeline import Timeline


class Pipeline:
    """The stages of a model, run by a program on as many devices as it has.

    loss       loss(output, target) of a microbatch; the step's loss is their weighted sum
    optimizer  makes the optimizer of some weights of a stage from their names and themselves
    scheduler  makes the learning-rate scheduler of an optimizer; steps once for each update
    clip       the largest norm of the gradients
    clip_by    whose norm: "global", of a "group" of stages that are equally stale, or of a "stage";
               the widest for which no device has to wait in every step, which is global unless
               the program is asynchronous
    staleness  what to do about stale weights, for asynchronous programs
    precision  what stages compute with, where that is not the type of the weights
    scale      losses are enlarged by it, for half precision; a number never changes
    seed       of everything random; see `weft.runtime.stage.randomness`
    nonfinite  what to do on all ranks when the loss or the norm is not finite: stop with an
               error, skip the update, or ignore it
    deadline   seconds after which a wait for another rank is an error, from here on
    first_deadline  the same in a first step or evaluation, once all ranks have come to it, as
               kernels are loaded and stages may be compiled; None waits for as long as they live
    transport  shared memory on one host and gloo between hosts; on GPUs copies from one to
               another ("peer") on one host and NCCL between hosts; or "loopback" for all devices in
               this process; see `weft.runtime.transport`
    cost       by which actions are launched in the order in which they would start; unit costs
               where nothing is known; rank 0's is everybody's
    record     whether steps have timelines; on a GPU that takes two events for each action
    graphs     whether stages are captured as CUDA graphs after two steps, and replayed from then
               on: the same bits, launched with less work on the host

    `program` is what runs: the given one with its messages, sums and updates.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        program: Program,
        *,
        loss: LossFunction,
        optimizer: Callable[[NamedParameters], Optimizer] | None = None,
        scheduler: Callable[[Optimizer], LRScheduler] | None = None,
        clip: float | None = None,
        clip_by: Scope | None = None,
        staleness: Staleness | None = None,
        precision: torch.dtype | None = None,
        scale: Scale | float | None = None,
        seed: int = 0,
        nonfinite: Nonfinite = "stop",
        deadline: float | None = 60.0,
        first_deadline: float | None = 1800.0,
        transport: Carrier = "auto",
        cost: Cost | None = None,
        record: bool = True,
        graphs: bool = False,
    ) -> None:
        updating = Updating(
            factories=Factories(optimizer, scheduler),
            clip=clip,
            clip_by=clip_by,
            nonfinite=nonfinite,
            staleness=staleness,
            precision=precision,
            scale=scale,
        )
        task = Task.of(stages, program, loss, updating, devices_here(program, transport))
        if graphs:
            check_capturable(task.program)
        self.program, self._task, self._deadline = task.program, task, deadline
        self._runs, self._is_compared, self._is_closed = 0, False, False
        self._world: World = world_of(
            unwired(task.ring.program),
            depth=task.depth,
            carrier=transport,
            device=task.device,
            deadline=deadline,
            patience=first_deadline,
        )
        with self._failing_together():
            cost = agreed(self._world, cost)
            self._task = task = task.over(self._world, cost)
            self.program = task.program
            capturing = CudaGraphs if graphs else None
            self._parts = Assembly(
                task, self._world, loss, seed, cost, capturing, is_recorded=record
            )

    def step(
        self,
        batch: Data,
        target: Data,
        *,
        weights: Sequence[float] | None = None,
        update: bool = True,
    ) -> Result:
        """Forward and backward of one batch, and an update unless gradients shall pile up.

        Where the program is asynchronous, the losses are those of this batch, but its backwards
        and its update may run with the next steps.
        """
        with self._failing_together():
            training = self._parts.training
            inputs, targets, shares = self._cut((batch, target), weights)
            self._begin(inputs, targets, "" if training.steps else "first step")
            if self.is_asynchronous:
                inputs, targets = ([one.cloned() for one in many] for many in (inputs, targets))
            run = self._next_run()
            known, recording = training.step(inputs, targets, shares, run, is_carried=not update)
            norm, is_skipped = None, False
            if not self.is_asynchronous:
                norm, is_skipped = training.settle()
                self._world.transport.end()
            elif training.is_warming_up:
                training.drain()
                training.restart()
            return self._result(norm, is_skipped, known, recording, self.program)

    def drain(self) -> Flight:
        """Finish what is in flight, with its updates; all stages have as many of them then.

        The next step goes on with weights of the same versions as without a drain; where a
        schedule stashes none, with the newest.
        """
        if not self.is_asynchronous:
            raise InputError(f"{self.program.name} is synchronous: nothing is in flight")
        with self._failing_together():
            return self._parts.training.drain()

    def evaluate(
        self, batch: Data, target: Data, *, weights: Sequence[float] | None = None
    ) -> Result:
        """The loss of a batch in evaluation mode; gradients, buffers and randomness stay.

        Drained first, where the program is asynchronous: all stages use weights of one version.
        """
        if self.is_asynchronous:
            self.drain()
        modes = [(one, one.training) for top in self.modules.values() for one in top.modules()]
        for module in self.modules.values():
            module.eval()
        try:
            with self._failing_together():
                return self._evaluated((batch, target), weights)
        finally:
            for module, is_training in modes:
                module.training = is_training

    def _evaluated(self, data: tuple[Data, Data], weights: Sequence[float] | None) -> Result:
        reading = self._parts.reading
        inputs, targets, shares = self._cut(data, weights)
        self._begin(inputs, targets, "" if reading.steps else "first evaluation")
        known, recording = reading.step(inputs, targets, shares, self._next_run())
        self._world.transport.end()
        return self._result(None, False, known, recording, reading.program)

    def gathered(self, result: Result | Flight) -> Timeline:
        """The timeline of a step or a flight on all ranks, on the clock of device 0; all ask."""
        local = result.timeline
        both = np.stack([local.start, local.end])
        both[both != 0] += self._world.offset
        total = self._world.total(torch.from_numpy(both), "the timeline").numpy()
        start, end = total - total[0][total[0] != 0].min(initial=np.inf)
        return replace(local, start=start, end=end)

    def close(self) -> None:
        """Leave the other ranks in good order, and close all connections; no step can follow.

        A pipeline that nothing knows any more is closed as well, and at the end of the process.
        """
        if not self._is_closed:
            self._is_closed = True
            self._parts.close()
            self._world.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_asynchronous(self) -> bool:
        """Whether updates come between microbatches."""
        return self.program.period is not None

    @property
    def modules(self) -> dict[tuple[int, int], nn.Module]:
        """The modules that this process trains, by pipe and stage."""
        return self._parts.modules

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        """Those of the stages that this process trains."""
        return tuple(self._parts.weights.optimizers)

    @property
    def norm(self) -> Tensor | None:
        """The last norm that the first stage here was clipped by."""
        return next(iter(self._parts.weights.policy.norms.values()), None)

    @property
    def copies(self) -> dict[int, int]:
        """How many copies of its weights this process has of each of its stages."""
        return self._parts.weights.copies

    def all_copies(self) -> dict[int, int]:
        """How many copies of its weights each stage has on all ranks together; all ask."""
        shares = self._world.gather(json.dumps(self.copies).encode(), "the copies of the weights")
        found = Counter[int]()
        for share in shares:
            found.update({int(stage): count for stage, count in json.loads(share).items()})
        return dict(sorted(found.items()))

    @contextmanager
    def _failing_together(self) -> Iterator[None]:
        """Whatever goes wrong here ends the waits of all other ranks."""
        if self._is_closed:
            raise InputError("this pipeline is closed: make another one to go on")
        try:
            with current(self._task.device):
                yield
            self._world.end()
        except Disagreement:
            raise  # all ranks raise it
        except NonfiniteError as error:
            if self.is_asynchronous:  # other ranks are not there yet
                self._world.fail(self._reason(error))
            raise
        except BaseException as error:
            self._world.fail(self._reason(error))
            raise

    def _reason(self, error: BaseException) -> str:
        return failure_of(error, self._world.devices.start)

    def _cut(
        self, data: tuple[Data, Data], weights: Sequence[float] | None
    ) -> tuple[list[Value], list[Value], tuple[float, ...]]:
        count = self.program.microbatches
        inputs, targets = cut(data[0], count, "batch"), cut(data[1], count, "target")
        return inputs, targets, weights_of(weights, count)

    def _next_run(self) -> int:
        """The number under which all ranks report the losses of a run."""
        self._runs += 1
        return self._runs - 1

    def _result(
        self,
        norm: Tensor | None,
        is_skipped: bool,
        known: RunLosses,
        recording: Recording | None,
        program: Program,
    ) -> Result:
        reports, dtype = self._world.losses, self._task.dtype
        return Result(norm, is_skipped, known, reports, recording, program, dtype)

    def _begin(self, inputs: Sequence[Value], targets: Sequence[Value], first: str) -> None:
        """Start a run on all ranks; refuse ranks that were given different data."""
        self._world.begin(self._deadline, first)
        if not self._is_compared:
            self._parts.compare(checksum([*inputs, *targets]), "the first batch or target")
            self._is_compared = True

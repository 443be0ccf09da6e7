"""Pipeline: a verified program trains the user's modules.

    pipeline = Pipeline(stages, program, loss=loss_fn, optimizer=lambda named: AdamW(...))
    result = pipeline.step(batch, target)

In a process group each rank runs one device; without one, all devices run in this process.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.cost import Share
from weft.errors import InputError, WeftError
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.notation import token
from weft.runtime.batch import Data, cut, weights_of
from weft.runtime.executor import Executor, Forward, Step
from weft.runtime.forms import Forms
from weft.runtime.gradients import Gradients
from weft.runtime.randomness import Draw, keyed
from weft.runtime.split import names_of
from weft.runtime.stage import Stage
from weft.runtime.world import Alone, Incoming, Ranks, World
from weft.timeline import Timeline
from weft.verify import check

NamedParameters = Iterable[tuple[str, nn.Parameter]]


@dataclass(frozen=True, slots=True)
class Result:
    """What a step gave: the loss of the batch, and when this process did what.

    Where other ranks run other devices, `Pipeline.gathered` has the whole timeline.
    """

    loss: Tensor
    timeline: Timeline


class Pipeline:
    """The stages of a model, run by a program on as many devices as it has.

    loss       loss(output, target) of a microbatch; the step's loss is their weighted sum
    optimizer  makes the optimizer of one stage from its named parameters
    clip       the largest global norm of the gradients
    seed       of everything random; see `weft.runtime.randomness`
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        program: Program,
        *,
        loss: Callable[..., Tensor],
        optimizer: Callable[[NamedParameters], Optimizer] | None = None,
        clip: float | None = None,
        seed: int = 0,
    ) -> None:
        depth = _check_fit(stages, program)
        self._program, self._loss, self._clip = program, loss, clip
        self._draw = Draw(seed)
        self._forms = Forms(stages, program.graph)
        is_group = dist.is_available() and dist.is_initialized()
        self._world: World = Ranks(program, depth=depth) if is_group else Alone(program)
        weights = (parameter for stage in stages for parameter in stage.parameters())
        self._dtype = next((weight.dtype for weight in weights), torch.get_default_dtype())
        self._copies = self._made(stages)
        counts = [len(list(stage.parameters())) for stage in stages]
        self._gradients = Gradients(program, self._copies, self._world, counts)
        self._executors = [self._executor(program, device) for device in self._world.devices]
        forwards = _forwards_of(program)
        self._readers = [
            self._executor(forwards, device, Stage.infer) for device in self._world.devices
        ]
        self._optimizers = {
            place: optimizer(list(stage.module.named_parameters()))
            for place, stage in self._copies.items()
            if optimizer and any(p.requires_grad for p in stage.module.parameters())
        }

    def step(
        self,
        batch: Data,
        target: Data,
        *,
        weights: Sequence[float] | None = None,
    ) -> Result:
        """Forward, backward and update of one batch."""
        result = self.accumulate(batch, target, weights=weights)
        self.update()
        return result

    def accumulate(
        self, batch: Data, target: Data, *, weights: Sequence[float] | None = None
    ) -> Result:
        """Forward and backward of one batch; gradients are added to what is there."""
        result = self._ran(self._executors, self._program, (batch, target), weights)
        self._draw.step += 1
        return result

    def evaluate(
        self, batch: Data, target: Data, *, weights: Sequence[float] | None = None
    ) -> Result:
        """The loss of a batch in evaluation mode; gradients, buffers and randomness stay."""
        trained = [module for module in self.modules.values() if module.training]
        for module in trained:
            module.eval()
        try:
            program = _forwards_of(self._program)
            return self._ran(self._readers, program, (batch, target), weights)
        finally:
            for module in trained:
                module.train()

    def _ran(
        self,
        executors: Sequence[Executor],
        program: Program,
        data: tuple[Data, Data],
        weights: Sequence[float] | None,
    ) -> Result:
        """What these executors make of a batch and its target."""
        count = program.microbatches
        inputs, targets = cut(data[0], count, "batch"), cut(data[1], count, "target")
        self._set_loss(targets, weights_of(weights, count))
        self._forms.begin(inputs)
        try:
            self._world.expect(_incoming(executors), self._forms.of)
            timeline = self._run(executors, program, inputs)
            self._world.finish()
            losses = self._losses(executors, count)
        finally:
            for executor in executors:
                executor.end()
        return Result(losses.sum(), timeline)

    def update(self) -> Tensor | None:
        """Sum over pipes, clip, step every stage's optimizer, and start from no gradients.

        The global norm of the gradients before clipping, where they are clipped.
        """
        self._gradients.sum_pipes()
        norm = None if self._clip is None else self._gradients.clip(self._clip, self._dtype)
        for optimizer in self._optimizers.values():
            optimizer.step()
        for stage in self._copies.values():
            stage.module.zero_grad(set_to_none=True)
        return norm

    def gathered(self, result: Result) -> Timeline:
        """The timeline of a step on all ranks; every rank asks for it.

        Ranks of one host share a clock.
        """
        local = result.timeline
        both = torch.from_numpy(np.stack([local.start, local.end]))
        start, end = self._world.total(both).numpy()
        return replace(local, start=start - start.min(), end=end - start.min())

    @property
    def modules(self) -> dict[tuple[int, int], nn.Module]:
        """The modules that this process trains, by pipe and stage."""
        return {place: stage.module for place, stage in self._copies.items()}

    # building

    def _made(self, stages: Sequence[nn.Module]) -> dict[tuple[int, int], Stage]:
        program, kinds = self._program, self._program.actions
        made = {}
        for pipe, devices in enumerate(program.placement.pipes):
            for index, module in enumerate(stages):
                if devices[index] not in self._world.devices:
                    continue
                own = module if (0, index) not in made else copy.deepcopy(module)
                mine = kinds.stage == index
                made[pipe, index] = Stage(
                    own,
                    self._draw,
                    is_first=not program.graph.predecessors[index],
                    is_split=bool((mine & (kinds.kind == Kind.I)).any()),
                    is_recomputed=bool((mine & (kinds.kind == Kind.R)).any()),
                )
        for (_, index), stage in made.items():
            keyed(stage.module, self._draw, names_of(stages[index], index))
        return made

    def _executor(
        self, program: Program, device: int, forward: Forward = Stage.forward
    ) -> Executor:
        copies = {place: self._copies[place] for place in program.placement.held[device]}
        return Executor(program, device, copies, self._world.transport, forward)

    def _set_loss(self, targets: list[tuple[Tensor, ...]], shares: tuple[float, ...]) -> None:
        def weighted(output: Tensor, microbatch: int) -> Tensor:
            return self._loss(output, *targets[microbatch]) * shares[microbatch]

        last = self._program.stages - 1
        for (_, index), stage in self._copies.items():
            stage.loss = weighted if index == last else None

    # running

    def _run(
        self,
        executors: Sequence[Executor],
        program: Program,
        inputs: Sequence[tuple[Tensor, ...]],
    ) -> Timeline:
        """Every device in turn, as far as it gets, until all have ended."""
        for executor in executors:
            executor.begin(inputs)
        start, end = np.zeros(len(program)), np.zeros(len(program))
        position = [0] * len(executors)
        total = sum(len(executor.steps) for executor in executors)
        while sum(position) < total:
            before = sum(position)
            for index, executor in enumerate(executors):
                while position[index] < len(executor.steps):
                    step = executor.steps[position[index]]
                    if not executor.is_ready(step):
                        break
                    executor.fetch(step)
                    start[step.row] = time.perf_counter()
                    _run_step(program, step)
                    end[step.row] = time.perf_counter()
                    executor.deliver()
                    position[index] += 1
            if sum(position) == before:
                raise WeftError(f"{program.name} stands still; verification should tell why")
        return Timeline(program, Share().cost(program), start, end, is_measured=True)

    def _losses(self, executors: Sequence[Executor], count: int) -> Tensor:
        """The weighted loss of every microbatch, on every rank."""
        known = {m: loss for executor in executors for m, loss in executor.losses.items()}
        losses = torch.zeros(count, dtype=torch.float64)
        for microbatch, loss in known.items():
            losses[microbatch] = loss
        return self._world.total(losses).to(self._dtype)


def _run_step(program: Program, step: Step) -> None:
    """Run one action; what goes wrong in the user's code says where."""
    try:
        step.run()
    except WeftError:
        raise
    except Exception as error:
        device, action = int(program.device_of[step.row]), token(program, step.row)
        raise WeftError(f"device {device} failed at {action}: {error}") from error


def _incoming(executors: Sequence[Executor]) -> list[Incoming]:
    """What these executors will receive, in the order of need."""
    return [
        Incoming(message, executor.source_of(message))
        for executor in executors
        for step in executor.steps
        for message in step.needs
    ]


def _forwards_of(program: Program) -> Program:
    """The forwards alone, in their order."""
    lanes = {
        lane: actions.take(np.flatnonzero(actions.kind == Kind.F)).replace(joined=0)
        for lane, actions in program.contents().items()
    }
    return program.with_lanes(lanes)


def _check_fit(stages: Sequence[nn.Module], program: Program) -> int:
    """Refuse, before the first action, what cannot run; the depth that its channels need."""
    report = check(program)
    if program.period is not None or (program.actions.version >= 0).any():
        raise InputError(f"{program.name} does not flush; asynchronous runs come later")
    if len(stages) != program.stages:
        raise InputError(f"{len(stages)} modules for the {program.stages} stages of {program.name}")
    if len([s for s in program.graph.successors if not s]) != 1:
        raise InputError(f"{program.name} has several last stages; join them in one")
    return report.channel_depth or 0

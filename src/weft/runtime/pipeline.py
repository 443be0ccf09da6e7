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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, get_args, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from weft.cost import Cost
from weft.errors import (
    InputError,
    WeftError,
)
from weft.ir.program import Program
from weft.lower import Amount, check_amount, unwired, whole
from weft.runtime.assembly import Assembly
from weft.runtime.batch import Data, weights_of
from weft.runtime.compression import AskedCompression
from weft.runtime.distributed import joined_by
from weft.runtime.evaluation import Evaluation, Metric, Tally
from weft.runtime.feed import Begun, Feed, GivenData
from weft.runtime.given import check_given, check_metrics, check_waits
from weft.runtime.initial.blueprint import Blueprint, GivenStages
from weft.runtime.initial.checkpoint import Initial
from weft.runtime.losses import LossFunction, LossShare, shares_of
from weft.runtime.precision import AskedPrecision, precision_of
from weft.runtime.ranks.carriers import Carrier
from weft.runtime.ranks.clock import Recording
from weft.runtime.ranks.losses import RunLosses
from weft.runtime.ranks.members import members_of
from weft.runtime.ranks.parting import closed_with
from weft.runtime.ranks.together import Together
from weft.runtime.ranks.world import World, world_of
from weft.runtime.reader import Reader
from weft.runtime.result import Flight, Result
from weft.runtime.saves.packing import JSON
from weft.runtime.saves.saver import Saver
from weft.runtime.setup import agreed_task, checked_task
from weft.runtime.split.stages import loss_for
from weft.runtime.stage.captures import CudaGraphs
from weft.runtime.stage.offload import MovedBytes
from weft.runtime.weights.options import (
    Factories,
    NamedParameters,
    Nonfinite,
    Reduction,
    Scope,
    Staleness,
    Updating,
    check_known,
)
from weft.runtime.weights.scaling import Scale
from weft.timeline import Timeline

if TYPE_CHECKING:
    from weft.runtime.planned import GivenPlan

MISSING: Any = object()  # where None means something
NO_METRICS: Mapping[str, Metric] = MappingProxyType({})


class Pipeline:
    """The stages of a model, run by a program on as many devices as it has.

    stages     modules; those on meta, and functions without arguments that return a module, are
               made where they run; see `weft.runtime.initial`
    mesh       a device mesh with a dimension "pp" for the devices of the program and perhaps "dp"
               for replicas of it, each of which is given its share of every batch, and "ep" for
               replicas that hold some of the experts each; along others stages may be cut or
               sharded by torch: see `weft.runtime.ranks.members`
    initial    where weights come from: a safetensors file, a folder with one or several of them, a
               file with a state_dict, or a mapping from names in the whole model to tensors
    loss       loss(output, target) of a microbatch; the step's loss is their weighted sum, by valid
               targets where the loss has a method `count(target)`; see `weft.runtime.losses`;
               the model's own where none is given and the stages have one
    optimizer  makes the optimizer of some weights of a stage from their names and themselves
    scheduler  makes the learning-rate scheduler of an optimizer; steps once for each update
    shard_optimizer  whether each copy of a stage, on another pipe or in another replica, keeps the
               state of its share of the weights, updates that, and gets the others (ZeRO-1): the
               same bits, in less memory
    reduce     how gradients of copies are summed: "ordered", in the order of the pipes, the same
               bits in every run; or by the "library", torch's all-reduce or reduce-scatter over
               gloo or NCCL: within rounding of that
    clip       the largest norm of the gradients
    clip_by    whose norm: "global", of a "group" of stages that are equally stale, or of a "stage";
               the widest for which no device has to wait in every step, which is global unless
               the program is asynchronous
    staleness  what to do about stale weights, for asynchronous programs
    precision  "bf16" or "fp16": stages compute with copies of that type, while optimizers change
               the weights as they are; "autocast": torch casts, as in `torch.autocast`; or the
               type itself
    compress   "bf16", "fp16" or "fp8": in what values and gradients travel from device to device;
               a `Compression` for one type each; or a dict of either by (source stage, reader
               stage)
    scale      losses are enlarged by it; a number never changes; for fp16, `Scale()` unless given
    seed       of everything random; see `weft.runtime.stage.randomness`
    nonfinite  what to do on all ranks when the loss or the norm is not finite: stop with an
               error, skip the update, or ignore it
    deadline   seconds after which a wait for another rank is an error, from here on
    first_deadline  the same in a first step or evaluation, and where stages are made, once all
               ranks have come to it, as weights and kernels are loaded and stages may be compiled;
               None waits for as long as they live
    transport  shared memory on one host and gloo between hosts; on GPUs copies from one to
               another ("peer") on one host and NCCL between hosts; or "loopback" for all devices in
               this process; see `weft.runtime.transport`
    cost       by which actions are launched in the order in which they would start; unit costs
               where nothing is known; rank 0's is everybody's
    offload    how much of what forwards keep goes to the host until its backward: "all" that is not
               needed right again; a fraction of the bytes of each device, chosen so that the
               most that it keeps falls; "auto", what the link to the host has time for, by the
               cost. Stages that are sequences leave layer by layer; a program that offloads does
               as it says; see `weft.lower.offload`
    record     whether steps have timelines; unless given, where that costs nothing, which is not
               on a GPU: there it takes two events for each action
    graphs     whether stages are captured as CUDA graphs after two steps, and replayed from then
               on: the same bits, launched with less work on the host
    whole_batch  whether the last stage and the loss take the whole batch at once, as a contrastive
               loss needs it: for gpipe, in which all forwards of a stage come before its backwards

    `program` is what runs: the given one with its messages, sums and updates.
    """

    def __init__(
        self,
        stages: GivenStages,
        program: Program,
        *,
        mesh: DeviceMesh | None = None,
        initial: Initial | None = None,
        loss: LossFunction | None = None,
        optimizer: Callable[[NamedParameters], Optimizer] | None = None,
        scheduler: Callable[[Optimizer], LRScheduler] | None = None,
        shard_optimizer: bool = False,
        reduce: Reduction = "ordered",
        clip: float | None = None,
        clip_by: Scope | None = None,
        staleness: Staleness | None = None,
        precision: AskedPrecision = None,
        compress: AskedCompression = None,
        scale: Scale | float | None = None,
        seed: int = 0,
        nonfinite: Nonfinite = "stop",
        deadline: float | None = 60.0,
        first_deadline: float | None = 1800.0,
        transport: Carrier = "auto",
        cost: Cost | None = None,
        offload: Amount = "none",
        record: bool | None = None,
        graphs: bool = False,
        whole_batch: bool = False,
    ) -> None:
        check_given(stages, program, loss, optimizer=optimizer, scheduler=scheduler)
        check_waits(deadline=deadline, first_deadline=first_deadline)
        check_amount(offload)
        check_known("transport", transport, get_args(Carrier))
        computed = precision_of(precision)
        updating = Updating(
            factories=Factories(optimizer, scheduler),
            clip=clip,
            clip_by=clip_by,
            nonfinite=nonfinite,
            staleness=staleness,
            precision=computed,
            scale=computed.scale if scale is None else scale,
            is_sharded=shard_optimizer,
            reduction=reduce,
        )
        if whole_batch:
            program = whole(program, [program.stages - 1])
        members = members_of(mesh, transport)
        self._replicas = 1 if members is None else members.replicas
        blueprint = Blueprint.of(stages, initial)
        self._loss, self._runs = loss_for(blueprint.stages, loss), count()
        task = checked_task(
            blueprint, program, self._loss, updating, members, compress, is_captured=graphs
        )
        self._world: World = world_of(
            unwired(task.ring.program),
            joined_by(task.stages, members),
            depth=task.depth,
            carrier=transport,
            device=task.device,
            deadline=deadline,
            patience=first_deadline,
        )
        self._parting = closed_with(self, self._world)
        self.program, self._deadline = task.program, deadline
        self._together = Together(self._world, task.device, is_asynchronous=self.is_asynchronous)
        with self._together():
            task, cost = agreed_task(task, self._world, cost, offload, is_captured=graphs)
            self._task = task = task.built(self._world, seed, deadline)
            self.program = task.program
            seed_of = (lambda one: one) if members is None else members.seed
            capturing = CudaGraphs if graphs else None
            is_recorded = task.device.type == "cpu" if record is None else record
            self._parts = Assembly(
                task,
                self._world,
                self._loss,
                seed_of(seed),
                cost,
                capturing,
                is_recorded=is_recorded,
            )
            self._feed = Feed(task.program, self._world, task.taken, self._replicas)
            self._saver = Saver(task, self._parts, self._world, deadline, seed_of)

    @classmethod
    def from_plan(
        cls, model: nn.Module | GivenStages, plan: GivenPlan, *, example: Any = None, **options: Any
    ) -> Self:
        """A pipeline as a plan has it: cut at its layers, with its program, passes and layout.

        model    a module: an nn.Sequential, one of Hugging Face, or any that can be traced with an
                 `example`; or its stages, cut already
        plan     a Plan, or the file of one
        options  as those of a Pipeline: loss, optimizer and the like; they win over the plan

        In a process group it needs as many ranks as the layout has processors, and makes its mesh;
        `weft.runtime.planned.mesh_of` gives it to stages that need it. Without one, replicas are
        pipes of one process, and a batch has the microbatches of all of them.
        """
        from weft.runtime.planned import planned  # schedules take long to import

        run = planned(model, plan, example, options)
        return cls(run.stages, run.program, **run.options)

    def step(
        self,
        batch: Data,
        target: Data,
        *,
        weights: Sequence[float] | None = None,
        update: bool = True,
    ) -> Result:
        """Forward and backward of one batch, and an update unless gradients shall pile up.

        Where a rank reads no inputs, or no targets, it may be given None, in all steps.
        Where the program is asynchronous, the losses are those of this batch, but its backwards
        and its update may run with the next steps.
        """
        with self._together():
            training = self._parts.training
            given = self._feed.trained(batch, target)
            (inputs, *_), run = self._begin(given, "step", is_first=training.is_new)
            shares = self._shares(given, weights)
            known, recording = training.step(
                inputs, given.wanted, shares, run, is_carried=not update
            )
            norm, is_skipped = None, False
            if not self.is_asynchronous:
                norm, is_skipped = training.settle()
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
        with self._together():
            return self._parts.training.drain()

    @overload
    def evaluate(
        self, data: Data, target: Data, *, weights: Sequence[float] | None = None
    ) -> Result: ...

    @overload
    def evaluate(
        self, data: Iterable[tuple[Data, Data]], *, metrics: Mapping[str, Metric] = NO_METRICS
    ) -> Evaluation: ...

    def evaluate(
        self,
        data: Any,
        target: Data = MISSING,
        *,
        weights: Sequence[float] | None = None,
        metrics: Mapping[str, Metric] = NO_METRICS,
    ) -> Result | Evaluation:
        """The loss of a batch, or of a loader's, in evaluation mode; nothing of the model changes.

        Gradients, buffers and random state stay as they were. A loader yields pairs of a batch and
        a target, as many on every rank; the last may have too few rows for all microbatches.
        Metrics are called as the loss is, and weighted alike. Drained first, where the program is
        asynchronous: all stages use weights of one version.
        """
        if (metrics and target is not MISSING) or (weights is not None and target is MISSING):
            raise InputError("weights are for a single batch and target, metrics for a loader")
        check_metrics(metrics)
        reader = self._drained()
        if target is MISSING:
            is_whole, device = self._is_whole_batch, self._task.device
            tally = Tally(self._loss, metrics, device, is_whole_batch=is_whole)
            return reader.evaluated(data, tally)
        with reader.mode() as reading, self._together():
            given = self._feed.trained(data, target)
            inputs, run = self._begin(given, "evaluation", is_first=not reading.steps)
            shares = self._shares(given, weights)
            known, recording = reading.step(inputs.values, given.wanted, shares, run)
            self._world.transport.end()
            return self._result(None, False, known, recording, reading.program)

    def predict(self, batch: Data, *, everywhere: bool = False) -> Any:
        """What the last stage returns for a batch, in evaluation mode; None on ranks without one.

        Its tensors are joined along their first dimension, and those without dimensions stacked; a
        list of microbatches gives a list of outputs. `everywhere` gives them to all ranks, on the
        CPU, as they are where several ranks have a part of them.
        """
        return self._drained().predicted(batch, is_everywhere=everywhere)

    def _drained(self) -> Reader:
        """What reads, once all stages have weights of one version."""
        self._finish()
        return Reader(self._parts, self._feed, self._begin, self._together)

    def save(
        self, folder: str | Path, *, extra: Mapping[str, JSON] | None = None, wait: bool = True
    ) -> None:
        """Write weights, optimizers and all else that the run needs to go on; all ranks save.

        An asynchronous program is drained first. `extra` is given back by `load`; that of rank 0
        counts. Without `wait`, values are copied and written while training goes on; the next save,
        load or close waits for that, and raises what went wrong. See `weft.runtime.saves`.
        """
        self._finish()
        with self._together():
            self._world.begin(self._deadline)
            self._saver.begin(Path(folder), extra or {}, is_copied=not wait)
            if wait:
                self._saver.finish()

    def load(self, folder: str | Path) -> dict[str, Any]:
        """Go on from a save of the same model, under any program or layout; what was its `extra`.

        All ranks load. The seed is that of the save. What does not fit is refused on all ranks, and
        changes nothing. A warning says if an asynchronous program goes on with other versions.
        """
        if not self._parts.training.is_new:
            self._finish()
        with self._together():
            self._world.begin(self._deadline, "loading of a save")
            return self._saver.load(Path(folder))

    def _finish(self) -> None:
        """Let all weights be whole and of one version, as whoever reads them between steps needs.

        An asynchronous program is drained; of a synchronous one, gathers may be under way.
        """
        if self.is_asynchronous:
            self.drain()
        elif self._parts.training.are_gathering:
            with self._together():
                self._parts.training.finish()

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
        if self._together.is_closed:
            return
        try:
            if not (self.is_asynchronous or self._together.has_failed):
                self._finish()
        finally:
            self._together.is_closed = True
            try:
                self._saver.close()
            finally:
                self._parts.close()
                self._parting.detach()
                self._world.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        with nullcontext() if error is None else suppress(WeftError):  # which would hide it
            self.close()

    @property
    def steps(self) -> int:
        """How many were taken, with those before a save that was loaded."""
        return self._parts.training.steps

    @property
    def is_asynchronous(self) -> bool:
        """Whether updates come between microbatches."""
        return self.program.period is not None

    @property
    def reads_inputs(self) -> bool:
        """Whether this process needs batches; where not, None will do."""
        return self._feed.reads_inputs

    @property
    def reads_targets(self) -> bool:
        """Whether this process needs targets; where not, None will do."""
        return self._feed.reads_targets

    @property
    def modules(self) -> dict[tuple[int, int], nn.Module]:
        """The modules that this process trains, by pipe and stage.

        Whoever asks for them finds whole weights: where copies share updates (`shard_optimizer`),
        a step leaves those of other copies to be gathered while the next one begins.
        """
        if not (self.is_asynchronous or self._together.is_closed):
            self._finish()
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
    def moved(self) -> MovedBytes:
        """Bytes that this process has offloaded so far, and those that came back."""
        return self._parts.moved

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

    @property
    def _is_whole_batch(self) -> bool:
        """Whether the last stage and the loss take the whole batch at once."""
        return self.program.graph.stages[-1].is_whole_batch

    def _shares(self, given: GivenData, weights: Sequence[float] | None) -> tuple[LossShare, ...]:
        """How much each microbatch counts, where that matters."""
        if weights is not None and self._is_whole_batch:
            raise InputError(
                "the loss is of the whole batch, not of microbatches: leave weights= out"
            )
        replicas, counts = self._replicas, self._world.counts
        weights_of(weights, self.program.microbatches // replicas)
        if given.wanted is None:
            return ()
        own = given.wanted[: len(given.wanted) // replicas]
        total = int if counts is None else counts.total
        return shares_of(self._loss, own, weights, replicas, total) * replicas

    def _result(
        self,
        norm: Tensor | None,
        is_skipped: bool,
        known: RunLosses,
        recording: Recording | None,
        program: Program,
    ) -> Result:
        return Result(norm, is_skipped, known, self._world.losses, recording, program)

    def _begin(self, given: GivenData, kind: str, *, is_first: bool) -> Begun:
        """Start a run on all ranks, and refuse ranks with different data."""
        self._world.begin(self._deadline, f"first {kind}" if is_first else "")
        if is_first:
            self._feed.agree(given, kind)
        return Begun(self._feed.inputs(given, kind), next(self._runs))

"""The reference: what training by a program means, in one process, with no pipeline at all.

    for each update t
        for each microbatch i: loss = share * loss(model(batch), target), and its gradient, with
            stage s as it was after version(t, i, s) updates
        for each stage and pipe: gradients added in the order of the program's B or W actions
        pipes summed in order, then the stages that share a weight
        clipping by the norm of each group of stages; a step of each stage's optimizer

Every program must give the same losses and weights, bit for bit, as long as its stages run the
same kernels. Shares nothing with what runs programs but the definitions of what is drawn, and of
what weights start from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from weft.errors import InputError
from weft.ir.graph import Graph
from weft.ir.program import Program
from weft.runtime.batch import Data, cut
from weft.runtime.compression import AskedCompression, compression_of
from weft.runtime.device.place import place_of, real
from weft.runtime.given import check_given
from weft.runtime.initial.blueprint import Blueprint, GivenStages
from weft.runtime.initial.building import Builder
from weft.runtime.initial.checkpoint import Initial
from weft.runtime.losses import LossFunction, shares_of
from weft.runtime.precision import AskedPrecision, precision_of
from weft.runtime.reference.model import Microbatch, WholeModel
from weft.runtime.reference.passes import PassWeights, in_one_graph, stage_by_stage
from weft.runtime.reference.rounding import Crossings
from weft.runtime.reference.sums import Sums
from weft.runtime.reference.together import ExpertModels, copies_of, group_of
from weft.runtime.reference.updates import Scales, UpdateOptions, Updates
from weft.runtime.reference.versions import Method, Version, method_of, restarted
from weft.runtime.reference.weights import ByUse, History, uses_of
from weft.runtime.reference.whole import BatchPass
from weft.runtime.saves.into_reference import ReferenceSave
from weft.runtime.split.stages import Stages, loss_for
from weft.runtime.weights.options import NamedParameters, Nonfinite, Staleness, check_verdicts
from weft.runtime.weights.scaling import Scale


class Reference:
    """The same results as a `Pipeline`, one microbatch after the other.

    stages     as a pipeline takes them; all are made here
    initial    where weights come from, as for a pipeline
    program    what is trained by: a program, or a method, which says the same without devices
    loss       loss(output, target) of a microbatch; the step's loss is their weighted sum, by valid
               targets where the loss has a method `count(target)`; see `weft.runtime.losses`;
               the model's own where none is given and the stages have one
    optimizer  makes the optimizer of one stage from its named parameters; without one, gradients
               are the user's
    scheduler  makes the learning-rate scheduler of an optimizer; steps once for each update
    clip       the largest norm of the gradients of each group of stages
    groups     stages that share a norm; all of them do unless given
    staleness  what is done about stale weights
    precision  "bf16" or "fp16": stages compute with copies of that type, while optimizers change
               the weights as they are; "autocast": torch casts, as in `torch.autocast`; or the
               type itself
    compress   what is rounded between stages that the program has on two devices, as a pipeline
               compresses it on its way
    scale      losses are enlarged by it; a number never changes; for fp16, `Scale()` unless given
    seed       of everything random; see `weft.runtime.stage.randomness`
    nonfinite  what to do when a loss or a norm is not finite: stop with an error, skip the update,
               or ignore it
    """

    def __init__(
        self,
        stages: GivenStages,
        program: Program | Method,
        *,
        initial: Initial | None = None,
        loss: LossFunction | None = None,
        optimizer: Callable[[NamedParameters], Optimizer] | None = None,
        scheduler: Callable[[Optimizer], LRScheduler] | None = None,
        clip: float | None = None,
        groups: Sequence[Sequence[int]] | None = None,
        staleness: Staleness | None = None,
        precision: AskedPrecision = None,
        compress: AskedCompression = None,
        scale: Scale | float | None = None,
        seed: int = 0,
        nonfinite: Nonfinite = "stop",
        whole_batch: bool = False,
    ) -> None:
        if not isinstance(program, Method):
            check_given(stages, program, loss, optimizer=optimizer, scheduler=scheduler)
        blueprint = Blueprint.of(stages, initial)
        method = _method(program, blueprint.stages, is_whole_batch=whole_batch)
        _check(method, staleness, has_optimizer=optimizer is not None)
        stale = staleness or Staleness()
        # each of the first updates is synchronous: the first one of a run that starts there
        self._method = restarted(range(stale.warmup + 1), method) if stale.warmup else method
        self._base, self._warmup, self._is_predicting = method, stale.warmup, stale.predict
        self._blueprint, made = blueprint, _made(blueprint, seed)
        loss = self._loss = loss_for(blueprint.stages, loss)
        self._temper, uses = stale.temper, uses_of(made)
        graph = method.graph or Graph.chain(len(stages))
        computed = precision_of(precision)
        computed.check(made)
        scale = computed.scale if scale is None else scale
        check_verdicts(clip, scale, nonfinite)
        make = partial(
            WholeModel,
            graph=graph,
            loss=loss,
            carries=blueprint.stages.carries,
            seed=seed,
            precision=computed,
            crossings=_crossings(compress, graph, program),
        )
        group = group_of(made, method)
        copies = copies_of(made, group)
        self._model = make(made)
        self._experts = ExpertModels(group, self._model, [*map(make, copies)]) if group else None
        types = [*map(computed.types_of, made)]
        self._history = History(uses, stale, types, is_kept=not method.is_synchronous)
        self._sums = Sums(uses, method.pipe_of or (0,) * method.microbatches)
        options = UpdateOptions(
            optimizer,
            scheduler,
            clip,
            groups=groups or [range(len(stages))],
            nonfinite=nonfinite,
            is_scaled=scale is not None,
        )
        self._has_optimizer = optimizer is not None
        self._updates, self._scales = Updates(uses, self._sums, options), Scales(scale)
        self._losses: list[Tensor] = []  # of the steps since the last update

    def load(self, folder: str | Path) -> dict[str, Any]:
        """Go on from a save of a pipeline, with this program or method; what was its `extra`.

        Where weights are stale, it goes on with the versions that the save has.
        """
        if self._is_predicting:
            raise InputError("no save has what a reference predicts by: leave predict= out")
        model = self._model
        saved = ReferenceSave(Path(folder), self._blueprint, model.stages, self._updates.updaters())
        saved.apply()
        run = saved.run
        origin = run.updates - run.position
        self._method = restarted([origin, *range(run.updates, self._warmup + 1)], self._base)
        model.draw.resume(run.seed, run.updates)
        self._history.resume(run.updates, saved.versions())
        self._scales.resume(run.updates, run.scale)
        self._sums.clear()
        self._losses.clear()
        return dict(run.extra)

    @property
    def updates(self) -> int:
        """How many updates there were, with those that left the weights as they are."""
        return self._history.newest

    @property
    def scale(self) -> float:
        """By how much the losses of an update are enlarged that knows of all before it."""
        return self._scales.after(self.updates)

    def step(
        self,
        batch: Data,
        target: Data,
        *,
        weights: Sequence[float] | None = None,
        update: bool = True,
    ) -> Tensor:
        """One update; the loss of its batch.

        With `update=False` it leaves the weights as they are: gradients are added to those of the
        next one.
        """
        scale = self._scales.after(min(self._oldest, self.updates))
        microbatches = self._cut(batch, target, weights)
        losses, gradients = self._all_passed(microbatches, scale)
        self._model.draw.step += 1
        total = torch.stack([*losses]).cpu().sum()  # in the order of a host, on any device
        self._losses.append(total)
        self._sums.add(gradients, partial(self._method.added, self.updates), scale)
        self._sums.hand_over()
        self._history.move_on(self._update if update else self._leave)
        self._forget()
        return total

    @property
    def _oldest(self) -> int:
        """The oldest version that the next update uses anywhere."""
        return self._method.oldest(self.updates, len(self._model.stages))

    def _cut(self, batch: Data, target: Data, weights: Sequence[float] | None) -> list[Microbatch]:
        count = self._method.microbatches
        inputs, targets = cut(batch, count, "batch"), cut(target, count, "target")
        shares = shares_of(self._loss, targets, weights)
        return [*map(Microbatch, range(count), inputs, targets, shares)]

    def _all_passed(
        self, microbatches: Sequence[Microbatch], scale: float
    ) -> tuple[Sequence[Tensor], Sequence[ByUse]]:
        """The loss and the gradients of each microbatch."""
        if any(stage.is_whole_batch for stage in self._model.graph.stages):
            leaves = self._leaves(self._method.version, 0)
            return BatchPass(self._model, microbatches, leaves).run(scale)
        if self._experts is not None:
            each = [self._leaves(self._method.version, one.number) for one in microbatches]
            return self._experts.run(self._method.meetings, microbatches, each, scale)
        losses, gradients = zip(*(self._passed(one, scale) for one in microbatches), strict=True)
        return losses, gradients

    def _passed(self, one: Microbatch, scale: float) -> tuple[Tensor, ByUse]:
        """The loss of a microbatch and its gradients, by the weights that the method has for it."""
        method, update, index = self._method, self.updates, one.number
        forward = self._leaves(method.version, index)
        if method.backward is None:
            return in_one_graph(self._model, one, PassWeights(forward, forward), scale)
        both = PassWeights(forward, self._leaves(method.backward, index))
        is_again = partial(method.recompute, update, index)
        if not any(is_again(stage) for stage in range(len(self._model.stages))):
            return in_one_graph(self._model, one, both, scale)
        return stage_by_stage(self._model, one, both, scale, is_again)

    def _leaves(self, version: Version, microbatch: int) -> ByUse:
        return self._history.leaves(partial(version, self.updates, microbatch))

    def _update(self) -> None:
        """Change the weights by what was added since the last update."""
        losses, self._losses = self._losses, []
        is_finite = self._updates.apply(self.updates, losses, self._divisor)
        self._scales.add(is_finite=is_finite)

    def _leave(self) -> None:
        """Leave the weights as they are; without an optimizer, every step's gradients are given."""
        self._scales.keep()
        if not self._has_optimizer:
            self._sums.clear()
            self._losses.clear()

    def _divisor(self, stage: int) -> float:
        """The staler a stage's weights, the lower its learning rate at first (PipeMare)."""
        staleness = self.updates - self._method.version(self.updates, 0, stage)
        if self._temper is None or staleness < 1:
            return 1.0
        return float(staleness ** (1 - min(self.updates / self._temper, 1)))

    def _forget(self) -> None:
        """Drop versions that no update asks for any more, nor a prediction."""
        self._history.forget(min(self._oldest, self.updates - len(self._model.stages)) - 1)


def _made(blueprint: Blueprint, seed: int) -> list[nn.Module]:
    """All stages of a model; what functions make is where the others are."""
    stages = blueprint.stages
    held = range(len(stages))
    device = place_of(stages, [one for one in held if one not in blueprint.functions])
    return Builder(blueprint, real(device), seed).built(stages, held)


def _method(program: Program | Method, stages: Stages, *, is_whole_batch: bool) -> Method:
    """What is trained by, over the graph that the stages have, if they have one of their own."""
    method = program if isinstance(program, Method) else method_of(program)
    known = method.graph or Graph.chain(len(stages))
    if len(known) != len(stages):
        raise InputError(f"{len(stages)} modules for a program of {len(known)} stages")
    own = known if stages.graph is None else stages.graph
    ends = [is_whole_batch and index == len(known) - 1 for index in range(len(known))]
    merged = tuple(
        replace(mine, is_whole_batch=mine.is_whole_batch or theirs.is_whole_batch or is_end)
        for mine, theirs, is_end in zip(known.stages, own.stages, ends, strict=True)
    )
    return replace(method, graph=replace(own, stages=merged))


def _crossings(asked: AskedCompression, graph: Graph, program: Program | Method) -> Crossings:
    """What is rounded between devices, of which a method knows nothing."""
    by_edge = compression_of(asked, graph)
    if isinstance(program, Program):
        return Crossings(by_edge, program)
    if by_edge:
        raise InputError("a method has no devices to compress between: give compress= a program")
    return Crossings()


def _check(method: Method, staleness: Staleness | None, *, has_optimizer: bool) -> None:
    """Refuse what a method cannot have."""
    if method.is_synchronous and staleness is not None:
        raise InputError(
            "all weights are the newest, so that there is nothing to warm up for, to predict or to"
            " temper; leave `staleness` out, or train by an asynchronous program"
        )
    if not method.is_synchronous and not has_optimizer:
        raise InputError("an asynchronous program updates by itself: give optimizer=")

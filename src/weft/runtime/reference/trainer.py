"""The reference: what training by a program means, in one process, with no pipeline at all.

    for each update t
        for each microbatch i: loss = weight * loss(model(batch), target), and its gradient, with
            stage s as it was after version(t, i, s) updates
        for each stage and pipe: gradients added in the order of the program's B or W actions
        pipes summed in order, then the stages that share a weight
        clipping by the norm of each group of stages; a step of each stage's optimizer

Every program must give the same losses and weights, bit for bit, as long as its stages run the
same kernels. Shares nothing with what runs programs but the definition of what is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from weft.errors import InputError
from weft.ir.graph import Graph
from weft.ir.program import Program
from weft.runtime.batch import Data, cut, weights_of
from weft.runtime.reference.model import Microbatch, WholeModel
from weft.runtime.reference.passes import PassWeights, in_one_graph, stage_by_stage
from weft.runtime.reference.sums import Sums
from weft.runtime.reference.updates import Scales, UpdateOptions, Updates
from weft.runtime.reference.versions import Method, Version, method_of, restarted
from weft.runtime.reference.weights import ByUse, History, uses_of
from weft.runtime.weights.options import NamedParameters, Nonfinite, Staleness
from weft.runtime.weights.scaling import Scale


class Reference:
    """The same results as a `Pipeline`, one microbatch after the other.

    program    what is trained by: a program, or a method, which says the same without devices
    loss       loss(output, target) of a microbatch; the step's loss is their weighted sum
    optimizer  makes the optimizer of one stage from its named parameters; without one, gradients
               are the user's
    scheduler  makes the learning-rate scheduler of an optimizer; steps once for each update
    clip       the largest norm of the gradients of each group of stages
    groups     stages that share a norm; all of them do unless given
    staleness  what is done about stale weights
    precision  what stages compute with, where that is not the type of the weights
    scale      losses are enlarged by it, for half precision; a number never changes
    seed       of everything random; see `weft.runtime.stage.randomness`
    nonfinite  what to do when a loss or a norm is not finite: stop with an error, skip the update,
               or ignore it
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        program: Program | Method,
        *,
        loss: Callable[..., Tensor],
        optimizer: Callable[[NamedParameters], Optimizer] | None = None,
        scheduler: Callable[[Optimizer], LRScheduler] | None = None,
        clip: float | None = None,
        groups: Sequence[Sequence[int]] | None = None,
        staleness: Staleness | None = None,
        precision: torch.dtype | None = None,
        scale: Scale | float | None = None,
        seed: int = 0,
        nonfinite: Nonfinite = "stop",
    ) -> None:
        method = _method(program, len(stages))
        _check(method, staleness, has_optimizer=optimizer is not None)
        stale = staleness or Staleness()
        # each of the first updates is synchronous: the first one of a run that starts there
        self._method = restarted(range(stale.warmup + 1), method) if stale.warmup else method
        self._temper, uses = stale.temper, uses_of(stages)
        graph = method.graph or Graph.chain(len(stages))
        self._model = WholeModel(stages, graph, loss, seed=seed, precision=precision)
        self._history = History(uses, stale, precision, is_kept=not method.is_synchronous)
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
        losses, gradients = zip(*(self._passed(one, scale) for one in microbatches), strict=True)
        self._model.draw.step += 1
        total = torch.stack(losses).cpu().sum()  # in the order of a host, on any device
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
        shares = weights_of(weights, count)
        return [*map(Microbatch, range(count), inputs, targets, shares)]

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


def _method(program: Program | Method, stages: int) -> Method:
    method = program if isinstance(program, Method) else method_of(program)
    if method.graph is not None and len(method.graph) != stages:
        raise InputError(f"{stages} modules for a program of {len(method.graph)} stages")
    return method


def _check(method: Method, staleness: Staleness | None, *, has_optimizer: bool) -> None:
    """Refuse what a method cannot have."""
    if method.is_synchronous and staleness is not None:
        raise InputError(
            "all weights are the newest, so that there is nothing to warm up for, to predict or to"
            " temper; leave `staleness` out, or train by an asynchronous program"
        )
    if not method.is_synchronous and not has_optimizer:
        raise InputError("an asynchronous program updates by itself: give optimizer=")

"""Together: microbatches that exchange tokens, one of each rank of an emulated expert group.

Every rank has a copy of the model, whose weights are those of the original: so what each adds to
their gradients is known apart, and added in the order of the program. Forwards run in turns, from
exchange to exchange, and one backward goes through the graphs of all. Torch runs what was computed
last first, as each thread counts it: so all ranks go back in step, each in its own order.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.runtime.experts.emulated import Emulated
from weft.runtime.experts.ranks import ExpertRanks
from weft.runtime.reference.model import Microbatch, WholeModel
from weft.runtime.reference.versions import Method
from weft.runtime.reference.weights import ByUse
from weft.runtime.stage.cast import Cast, without_autocast
from weft.runtime.stage.deferred import hooked
from weft.runtime.stage.seeds import Drawn


class _RankPass(NamedTuple):
    """What a rank has computed, and drawn."""

    loss: Tensor
    enlarged: Tensor
    drawn: Drawn


class ExpertModels:
    """The model of each rank of a group; that of the first is the user's own."""

    def __init__(self, group: Emulated, own: WholeModel, copies: Sequence[WholeModel]) -> None:
        self._group, self._own, self._copies = group, own, copies

    def run(
        self,
        meetings: Sequence[Sequence[int]],
        microbatches: Sequence[Microbatch],
        leaves: Sequence[ByUse],
        scale: float,
    ) -> tuple[list[Tensor], list[ByUse]]:
        """The loss of each microbatch, and its gradients, enlarged by the scale."""
        self._follow()
        found: dict[int, tuple[Tensor, ByUse]] = {}
        for meeting in meetings:
            met = [microbatches[number] for number in meeting]
            passed = self._passed(met, [leaves[number] for number in meeting], scale)
            found.update(zip(meeting, passed, strict=True))
        each = [found[one.number] for one in microbatches]
        return [loss for loss, _ in each], [gradients for _, gradients in each]

    @property
    def _models(self) -> list[WholeModel]:
        return [self._own, *self._copies]

    def _passed(
        self, microbatches: Sequence[Microbatch], leaves: Sequence[ByUse], scale: float
    ) -> list[tuple[Tensor, ByUse]]:
        """The same of microbatches that exchange tokens with each other."""
        own = [{use: _apart(leaf) for use, leaf in each.items()} for each in leaves]
        each = zip(self._models, microbatches, own, strict=True)
        cast = Cast.here(self._own.device)  # which a thread does not inherit
        found = self._group.run([partial(_forward, *one, scale, cast) for one in each])
        with ExitStack() as stack:
            for model, ran, mine in zip(self._models, found, own, strict=True):
                stack.enter_context(model.draw.backward(ran.drawn))
                stack.enter_context(model.holding(mine))
            stack.enter_context(without_autocast(self._own.device))
            torch.autograd.backward([ran.enlarged for ran in found if ran.loss.requires_grad])
        return [(ran.loss.detach(), _gradients(mine)) for ran, mine in zip(found, own, strict=True)]

    def _follow(self) -> None:
        """Let all copies be in the modes of the user's model, and draw by the same seed."""
        own = self._own
        for model in self._copies:
            model.draw.resume(own.draw.seed, own.draw.step)
            for stage, other in zip(own.stages, model.stages, strict=True):
                for one, twin in zip(stage.modules(), other.modules(), strict=True):
                    twin.training = one.training


def _forward(
    model: WholeModel, one: Microbatch, leaves: ByUse, scale: float, cast: Cast
) -> _RankPass:
    with cast.beside(), model.running(one) as drawn:
        loss = model.loss(model.output(one, leaves), one)
    return _RankPass(loss, loss * scale, drawn)


def _apart(leaf: Tensor) -> Tensor:
    """The same values, with gradients of their own."""
    return leaf.detach().requires_grad_(leaf.requires_grad)


def _gradients(leaves: ByUse) -> ByUse:
    """What a backward gave each leaf, as hooks of its weight leave it."""
    return {
        use: hooked(use.weight, leaf.grad) for use, leaf in leaves.items() if leaf.grad is not None
    }


def copies_of(stages: Sequence[nn.Module], group: Emulated | None) -> list[list[nn.Module]]:
    """Those of all ranks but the first, before anything of a model knows its stages."""
    return [] if group is None else [copy.deepcopy([*stages]) for _ in range(1, group.size)]


def group_of(stages: Sequence[nn.Module], method: Method) -> Emulated | None:
    """The group that a model was built with; refuse one that is not as the program has it."""
    found = {
        id(value): value
        for stage in stages
        for module in stage.modules()
        for value in vars(module).values()
        if isinstance(value, Emulated | ExpertRanks)
    }
    if any(isinstance(group, ExpertRanks) for group in found.values()):
        raise InputError(
            "the model exchanges tokens with other ranks, and a reference has none: build it with"
            " weft.runtime.experts.Emulated(size), which holds the experts of all"
        )
    if len(found) > 1:
        raise InputError("the model has several emulated expert groups: build all of it with one")
    group = next((one for one in found.values() if isinstance(one, Emulated)), None)
    ranks = len(method.meetings[0]) if method.meetings else 1
    if group is not None and group.size != ranks:
        raise InputError(
            f"the model emulates {group.size} expert ranks, and the program has {ranks}: give"
            f" weft.lower.replicated(program, replicas, expert_ranks={group.size})"
        )
    if group is None or group.size == 1:
        return None
    if any(stage.is_whole_batch for stage in (method.graph.stages if method.graph else ())):
        raise InputError("expert ranks have a share of the batch each: leave whole_batch= out")
    if method.backward is not None:
        raise InputError(
            "backwards of this program use other weights than their forwards, which is not emulated"
            " for expert ranks: use a schedule that stashes weights"
        )
    return group

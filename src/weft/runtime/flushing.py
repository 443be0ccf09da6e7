"""Flushing: a pipeline that is empty before every update, so that all weights are the newest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.errors import NonfiniteError
from weft.runtime.lane.executor import Executor
from weft.runtime.result import Result
from weft.runtime.stage.modules import refuse_unfrozen
from weft.runtime.stage.stage import Stage
from weft.runtime.weights.exchange import Gradients
from weft.runtime.weights.factories import Makers, Nonfinite


class Flushing:
    """The stages of a process in a program that flushes, and what updates them."""

    def __init__(
        self,
        executors: Sequence[Executor],
        gradients: Gradients,
        copies: Mapping[tuple[int, int], Stage],
        makers: Makers,
        *,
        clip: float | None,
        nonfinite: Nonfinite,
    ) -> None:
        self.executors, self._gradients, self._copies = executors, gradients, copies
        self._clip, self._nonfinite = clip, nonfinite
        made = [makers.both([*stage.module.named_parameters()]) for stage in copies.values()]
        self.optimizers: list[Optimizer] = [one for one, _ in made if one is not None]
        self._schedulers = [one for _, one in made if one is not None]
        self._frozen = {
            stage.index: stage.module
            for stage, (one, _) in zip(copies.values(), made, strict=True)
            if one is None and makers.optimizer is not None
        }
        self._piled: list[Result] = []  # batches whose gradients wait for an update
        self._is_updating = makers.optimizer is not None
        self._before: list[tuple[nn.Parameter, Tensor]] = []  # gradients that are the user's

    def step(self, run: Callable[[], Result], number: int, *, is_updated: bool) -> Result:
        """Forward and backward of one batch, and an update unless gradients shall pile up."""
        refuse_unfrozen(self._frozen)
        if not self._is_updating and not self._piled:
            self._set_aside()
        try:
            result = run()
        except BaseException:
            self._clear()  # of gradients to which some microbatches were added
            raise
        self._piled.append(result)
        if not is_updated and not self._is_updating:
            return self._given_back(result)
        return self._updated(result, number) if is_updated else result

    def _given_back(self, result: Result) -> Result:
        """Without an optimizer, every step's gradients are the user's at once."""
        self._gradients.sum_copies()
        self._add_before()
        self._piled.clear()
        return result

    def _updated(self, result: Result, number: int) -> Result:
        """Sum over copies, clip, step every stage's optimizer, and start from no gradients."""
        is_watched = self._nonfinite != "ignore"
        reason = self._bad_loss(number) if is_watched else None
        norm = None
        if not reason:
            self._gradients.sum_copies()
            self._add_before()
            if self._clip is not None:
                norm = self._gradients.clip(self._clip)
                if is_watched and not torch.isfinite(norm):
                    reason = f"the norm of the gradients of step {number} is {norm:g}"
        if not reason:
            for optimizer in self.optimizers:
                optimizer.step()
            for scheduler in self._schedulers:
                scheduler.step()
        if reason or self._is_updating:
            self._clear()
        self._piled.clear()
        torch.clear_autocast_cache()  # of weights as they were
        if reason and self._nonfinite == "stop":
            remedy = "nonfinite='skip' leaves such updates out"
            raise NonfiniteError(f"{reason}; no weight was changed. {remedy}")
        return replace(result, norm=norm, is_skipped=reason is not None)

    def _bad_loss(self, number: int) -> str | None:
        """The first loss since the last update that is not finite."""
        for step, result in enumerate(self._piled, start=number - len(self._piled) + 1):
            if result.bad_loss:
                return f"the loss of step {step} is {result.bad_loss}"
        return None

    def _clear(self) -> None:
        """Start from no gradients but those that the user had."""
        self._piled.clear()
        for stage in self._copies.values():
            stage.module.zero_grad(set_to_none=True)
        self._add_before()

    def _set_aside(self) -> None:
        """Keep what was summed over copies before apart from what will be."""
        for stage in self._copies.values():
            for weight in stage.module.parameters():
                if weight.grad is not None:
                    self._before.append((weight, weight.grad))
                    weight.grad = None

    def _add_before(self) -> None:
        """Without an optimizer gradients are the user's, and add up until they are cleared."""
        for weight, grad in self._before:
            weight.grad = grad if weight.grad is None else grad.add_(weight.grad)
        self._before.clear()

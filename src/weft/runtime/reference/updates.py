"""Updates: gradients measured, clipped and handed to the optimizers, one for each stage.

A tied weight is updated once, at the first stage that uses it. What is not finite stops the
training or is left out, as the user wants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from weft.errors import NonfiniteError
from weft.runtime.experts.apart import parts_of
from weft.runtime.reference.sums import Sums
from weft.runtime.reference.weights import Use
from weft.runtime.saves.optimizers import Updater
from weft.runtime.weights.options import Factories, NamedParameters, Nonfinite
from weft.runtime.weights.scaling import Scale


class UpdateOptions(NamedTuple):
    """What a user asks of updates; `groups` are stages that share a norm."""

    optimizer: Callable[[NamedParameters], Optimizer] | None
    scheduler: Callable[[Optimizer], LRScheduler] | None
    clip: float | None
    groups: Sequence[Sequence[int]]
    nonfinite: Nonfinite
    is_scaled: bool


class Updates:
    """The optimizers of a model's stages, and what they are given."""

    def __init__(self, uses: Sequence[Use], sums: Sums, options: UpdateOptions) -> None:
        self._sums, self._options = sums, options
        stages = {use.stage for use in uses}
        self._own = {s: [u for u in uses if u.stage == s and u.is_home] for s in sorted(stages)}
        self._optimizers: dict[int, Optimizer] = {}
        self._schedulers: dict[int, LRScheduler] = {}
        self._make()

    def _make(self) -> None:
        """An optimizer for each stage with something to learn that has none yet."""
        factories = Factories(self._options.optimizer, self._options.scheduler)
        for stage, own in self._own.items():
            if stage in self._optimizers:
                continue
            made, scheduler = factories.both([(use.name, use.weight) for use in own])
            if made is not None:
                self._optimizers[stage] = made
            if scheduler is not None:
                self._schedulers[stage] = scheduler

    def updaters(self) -> dict[int, Updater]:
        """The optimizer of each stage, with its scheduler."""
        return {s: Updater(one, self._schedulers.get(s)) for s, one in self._optimizers.items()}

    def apply(self, update: int, losses: Sequence[Tensor], divisor: Callable[[int], float]) -> bool:
        """Change the weights by the gradients since the last update; whether these are finite.

        A stage's learning rate is divided by its divisor.
        """
        self._make()
        reason = self._bad_loss(update, losses)
        found = [self._apply_to(group, update, reason, divisor) for group in self._options.groups]
        for optimizer in self._optimizers.values():
            optimizer.zero_grad()
        if self._options.optimizer is None and not all(one.is_applied for one in found):
            self._sums.take_back()
        self._sums.clear()
        torch.clear_autocast_cache()  # of weights as they were
        return all(one.is_finite for one in found)

    def _apply_to(
        self,
        group: Sequence[int],
        update: int,
        reason: str | None,
        divisor: Callable[[int], float],
    ) -> _Outcome:
        """Clip and change the weights of some stages, unless there is a reason not to."""
        options, is_finite = self._options, True
        weights = [use.weight for stage in group for use in self._own.get(stage, ())]
        if options.clip is not None or options.is_scaled:
            grads = [part for weight in weights for part in _measured(weight)]
            norm = _total_norm(grads)
            is_finite = bool(torch.isfinite(norm))
            if not is_finite:
                reason = reason or self._bad_norm(update, norm)
            if options.clip is not None and reason is None:
                nn.utils.clip_grads_with_norm_(weights, options.clip, norm, foreach=False)
        for stage in group if reason is None else ():
            self._step(stage, divisor(stage))
        return _Outcome(is_finite=is_finite, is_applied=reason is None)

    def _step(self, stage: int, divisor: float) -> None:
        if stage not in self._optimizers:
            return
        optimizer = self._optimizers[stage]
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups if divisor != 1 else ():
            group["lr"] = group["lr"] / divisor
        optimizer.step()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        if stage in self._schedulers:
            self._schedulers[stage].step()

    def _bad_loss(self, update: int, losses: Sequence[Tensor]) -> str | None:
        """What is wrong with the losses since the last update, if anybody wants to know."""
        bad = [loss for loss in losses if not torch.isfinite(loss)]
        return self._refused(f"the loss of update {update} is {float(bad[0]):g}") if bad else None

    def _bad_norm(self, update: int, norm: Tensor) -> str | None:
        """The same of gradients; those that a scale made too large are always left out."""
        reason = f"the norm of the gradients of update {update} is {norm:g}"
        return reason if self._options.is_scaled else self._refused(reason)

    def _refused(self, reason: str) -> str | None:
        """The reason to leave an update out, if it shall neither be ignored nor stop all."""
        if self._options.nonfinite == "ignore":
            return None
        if self._options.nonfinite == "skip":
            return reason
        self._sums.take_back()
        raise NonfiniteError(f"{reason}; nonfinite='skip' leaves such updates out")


def _measured(weight: nn.Parameter) -> Sequence[Tensor]:
    """Its gradient as it is measured: by the rows of each rank, where ranks hold them apart."""
    if weight.grad is None:
        return ()
    parts = parts_of(weight)
    return weight.grad.chunk(parts) if parts > 1 else (weight.grad,)


def _total_norm(grads: Sequence[Tensor]) -> Tensor:
    """The norm of their norms, which the host adds up, as it does those of all ranks.

    A GPU adds up in another order: after clipping by its sum, last digits would differ.
    """
    norms = [torch.linalg.vector_norm(grad) for grad in grads]
    total: Tensor = (
        torch.linalg.vector_norm(torch.stack(norms).cpu())
        if norms
        else torch.zeros((), device="cpu")
    )
    return total


class _Outcome(NamedTuple):
    """What became of the gradients of a group of stages."""

    is_finite: bool
    is_applied: bool


class Scales:
    """By how much the losses of an update are enlarged, from how the updates before it went."""

    def __init__(self, scale: Scale | float | None) -> None:
        self._interval = scale.interval if isinstance(scale, Scale) else None
        first = scale.initial if isinstance(scale, Scale) else scale
        self._values = [1.0 if first is None else float(first)]  # after as many updates
        self._good = 0

    def after(self, updates: int) -> float:
        return self._values[updates]

    def resume(self, updates: int, saved: tuple[Sequence[tuple[int, float]], int] | None) -> None:
        """Go on after as many updates, of which a save may say when the scale changed."""
        if saved is None or self._interval is None:
            saved = [(0, self._values[0])], 0
        changes, self._good = saved
        known = dict(changes)
        values = [known[0]]
        for update in range(1, updates + 1):
            values.append(known.get(update, values[-1]))
        self._values = values

    def add(self, *, is_finite: bool) -> None:
        """Halve it after gradients that are not finite, double it after enough that are."""
        scale, self._good = self._values[-1], self._good + 1 if is_finite else 0
        if self._interval is not None and not is_finite:
            scale /= 2
        elif self._interval is not None and self._good == self._interval:
            scale, self._good = 2 * scale, 0
        self._values.append(scale)

    def keep(self) -> None:
        """An update that leaves all weights as they are says nothing."""
        self._values.append(self._values[-1])

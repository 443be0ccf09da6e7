"""Parameter groups: weights that are updated together, a stage's own or its end of a tied one.

    close    after the last backward of an update: take its gradients
    sum_up   what an exchange made of them; the last one makes them whole, and they are measured
    apply    change the weights

Between the first and the last, norms and gradients of other devices arrive, while microbatches go
on. Knows gradients; knows neither lanes nor messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from weft.runtime.device.accelerator import onto, used_here
from weft.runtime.weights.exchange import Grads
from weft.runtime.weights.policy import Policy
from weft.runtime.weights.versions import Newest, Stash


class ParameterGroup:
    """Weights that are updated together on one device.

    number     under which their norms are sent
    stage      where they are updated first: their home
    places     where they stand in the model; None where another copy is measured
    exchanges  how many make their gradients whole
    """

    def __init__(
        self,
        number: int,
        stage: int,
        store: Newest | Stash,
        policy: Policy,
        *,
        places: Sequence[int] | None,
        made: tuple[Optimizer | None, LRScheduler | None],
        exchanges: int,
    ) -> None:
        self.number, self.stage, self.store, self._policy = number, stage, store, policy
        self.weights: Sequence[nn.Parameter] = store.parameters
        self._places, self._exchanges = places, exchanges
        self.optimizer, self._scheduler = made
        self._closed: dict[int, Grads] = {}
        self._missing: dict[int, int] = {}  # exchanges to come, by update
        self._before: Grads = []  # gradients that are the user's
        self.is_in_fixed_memory = False  # that the next step writes again

    def begin(self) -> None:
        """Without an optimizer gradients are the user's, and add up until they are cleared."""
        self.store.look()
        if self._policy.keeps_gradients:
            self._before = [weight.grad for weight in self.weights]
            for weight in self.weights:
                weight.grad = None

    def close(self, update: int) -> None:
        """Take the gradients of an update: what comes from now on belongs to the next one."""
        grads = [weight.grad for weight in self.weights]
        for weight in self.weights:
            weight.grad = None
        scale = self._policy.scale(update)
        if scale != 1:
            for grad in grads:
                if grad is not None:
                    grad.mul_(1 / scale)
        self._closed[update], self._missing[update] = grads, self._exchanges
        self._look(update)

    def carry(self, update: int) -> None:
        """Leave the gradients of an update for the next one, scaled as that one's will be."""
        if self._policy.scaling is not None:
            ratio = self._policy.scale(update + 1) / self._policy.scale(update)
            for weight in self.weights if ratio != 1 else ():
                if weight.grad is not None:
                    weight.grad.mul_(ratio)

    def closed(self, update: int) -> Grads:
        """The gradients of an update; a copy that no microbatch has passed has none."""
        if update not in self._closed:
            self.close(update)
        return self._closed[update]

    def is_due(self, update: int, *, is_tied: bool) -> bool:
        """Whether its gradients can be summed over copies, or over the ends of a tied weight."""
        return self._missing.get(update) == (1 if is_tied else self._exchanges)

    def sum_up(self, update: int, grads: Grads) -> None:
        """Take what an exchange has summed."""
        self._closed[update] = grads
        self._missing[update] -= 1
        self._look(update)

    def _look(self, update: int) -> None:
        """Measure gradients that are whole."""
        if self._missing[update]:
            return
        del self._missing[update]
        grads = self._closed[update]
        if self._before:
            grads = [self._added(*pair) for pair in zip(self._before, grads, strict=True)]
            self._closed[update] = grads
        if self._policy.is_measuring(update) and self._places is not None:
            self._policy.send(update, self.number, *_norms(self._places, grads))

    def _added(self, before: Tensor | None, grad: Tensor | None) -> Tensor | None:
        """What the user has by now."""
        if grad is None:
            return before
        if before is None:
            return grad.clone() if self.is_in_fixed_memory else grad
        return before + grad  # the update may be left out yet

    def apply(self, update: int) -> None:
        """Change the weights by the gradients of an update, if nothing is wrong with them."""
        if self._policy.is_carried(update):
            self.store.update(_nothing)
            return
        grads = self._closed.pop(update)
        if self._exchanges:
            used_here(grads)  # summed up on another stream
        verdict = self._policy.verdict(update, self.number, self.stage)
        if not verdict.is_good:
            self.store.update(_nothing)
            self._take_back()
            return
        if verdict.factor is not None:
            factor = None
            for grad in grads:
                if grad is not None:
                    factor = onto(verdict.factor, grad.device) if factor is None else factor
                    grad.mul_(factor)
        self.store.update(partial(self._step, update, grads))

    def _step(self, update: int, grads: Grads) -> None:
        """Let the optimizer see these gradients, whatever has come since."""
        later = [weight.grad for weight in self.weights]
        for weight, grad in zip(self.weights, grads, strict=True):
            weight.grad = grad
        if self.optimizer is None:
            if self._policy.keeps_gradients:
                self._before = []
                return
        else:
            self._change(self.optimizer, self._policy.rate(self.stage, update))
        for weight, grad in zip(self.weights, later, strict=True):
            weight.grad = grad

    def _change(self, optimizer: Optimizer, rate: float) -> None:
        rates = [group["lr"] for group in optimizer.param_groups] if rate != 1 else []
        for group, own in zip(optimizer.param_groups, rates, strict=False):
            group["lr"] = own * rate
        optimizer.step()
        for group, own in zip(optimizer.param_groups, rates, strict=False):
            group["lr"] = own
        if self._scheduler is not None:
            self._scheduler.step()

    def give_up(self) -> None:
        """Forget all gradients of a step that failed but those that the user had."""
        self._closed.clear()
        self._missing.clear()
        for weight in self.weights:
            weight.grad = None
        self._take_back()

    def _take_back(self) -> None:
        """Let the user have the gradients of before, if they were any."""
        for weight, grad in zip(self.weights, self._before, strict=False):
            weight.grad = grad
        self._before = []


def _nothing() -> None:
    """The next version is as this one."""


def _norms(places: Sequence[int], grads: Grads) -> tuple[list[int], Tensor]:
    """The norm of every gradient, and whose it is."""
    found = {
        place: torch.linalg.vector_norm(grad)
        for place, grad in zip(places, grads, strict=True)
        if grad is not None
    }
    return [*found], torch.stack([*found.values()]) if found else torch.empty(0)

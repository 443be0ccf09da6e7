"""Parameter groups: weights that are updated together, a stage's own or its end of a tied one.

    close    after the last backward of an update: take its gradients
    sum_up   what an exchange made of them; the last one makes them whole, and they are measured
    apply    change the weights, or this copy's part of them
    complete take what other copies have made of theirs

Between the first and the last, norms and gradients of other devices arrive, while microbatches go
on. Knows gradients; knows neither lanes nor messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from weft.runtime.device.accelerator import onto, used_here
from weft.runtime.device.shards import local, placed
from weft.runtime.experts.apart import is_apart
from weft.runtime.weights.exchange import Grads
from weft.runtime.weights.policy import Policy
from weft.runtime.weights.shards import Shard
from weft.runtime.weights.versions import Newest, Stash


class ParameterGroup:
    """Weights that are updated together on one device.

    number     under which their norms are known
    sent_as    under which this copy sends what it measures of them
    stage      where they are updated first: their home
    places     where they stand in the model; -1, or None for all, where another copy is measured
    exchanges  how many make their gradients whole
    is_beside  whether parts of their stage run on a stream of their own
    shard      what of them this copy updates, where that is not all
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
        is_beside: bool = False,
        shard: Shard | None = None,
        sent_as: int | None = None,
    ) -> None:
        self.number, self.stage, self.store, self._policy = number, stage, store, policy
        self.weights: Sequence[nn.Parameter] = store.parameters
        self._places, self._exchanges = places, exchanges
        self._is_crossing = exchanges > 0 or is_beside
        self._sent_as = number if sent_as is None else sent_as
        self.given, self._applied = shard, -1  # what its optimizer is made for
        self.shard = shard and shard.only(self.weights)
        self.is_scattered = shard is not None and not policy.updating.is_measuring
        self.optimizer, self.scheduler = made
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
        grads = [
            None if weight.grad is None else placed(weight.grad, weight) for weight in self.weights
        ]
        for weight in self.weights:
            weight.grad = None
        scale = self._policy.scale(update)
        if scale != 1:
            for grad in grads:
                if grad is not None:
                    local(grad).mul_(1 / scale)
        self._closed[update], self._missing[update] = grads, self._exchanges
        self._look(update)

    def carry(self, update: int) -> None:
        """Leave the gradients of an update for the next one, scaled as that one's will be."""
        if self._policy.scaling is not None:
            ratio = self._policy.scale(update + 1) / self._policy.scale(update)
            for weight in self.weights if ratio != 1 else ():
                if weight.grad is not None:
                    local(weight.grad).mul_(ratio)

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
            self._policy.send(update, self._sent_as, *_norms(self._places, grads))

    def _added(self, before: Tensor | None, grad: Tensor | None) -> Tensor | None:
        """What the user has by now."""
        if grad is None:
            return before
        if before is None:
            return grad.clone() if self.is_in_fixed_memory else grad
        return before + grad  # the update may be left out yet

    def apply(self, update: int) -> None:
        """Change the weights by the gradients of an update, if nothing is wrong with them."""
        self._applied = update
        if self._policy.is_carried(update):
            self.store.update(_nothing)
            return
        grads = self._own(self._closed.pop(update))
        if self._is_crossing:
            # which were added or summed up on another stream
            used_here(local(grad) for grad in grads if grad is not None)
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
                    local(grad).mul_(factor)
        if self.shard is None:
            self.store.update(partial(self._step, update, grads))
        else:
            change = partial(self._step_shard, self.shard, update, grads)
            self.store.update(change, is_whole=False)

    def _own(self, grads: Grads) -> Grads:
        """The gradients of what this copy updates: a norm needs the sums whole until here."""
        shard = self.shard
        if shard is None or self.is_scattered:
            return grads
        return shard.parts_of(grads, shard.copy)

    def _step_shard(self, shard: Shard, update: int, grads: Grads) -> None:
        """Let the optimizer see its parts of the weights and of these gradients."""
        shard.look()
        for part, grad in zip(shard.owned, grads, strict=True):
            part.grad = grad
        if self.optimizer is not None:
            self._change(self.optimizer, self._policy.rate(self.stage, update))
        for part in shard.owned:
            part.grad = None

    # between copies that update a part each

    def is_made(self, update: int) -> bool:
        """Whether this copy has done its part of an update."""
        return self._applied >= update

    @property
    def made(self) -> list[Tensor]:
        """This copy's parts of the newest weights, but for those that no other copy has."""
        assert self.shard is not None
        self.shard.look()
        pairs = zip(self.shard.weights, self.shard.owned, strict=True)
        return [part.data for weight, part in pairs if not is_apart(weight)]

    def complete(self, parts: Mapping[int, Tensor]) -> None:
        """Take what other copies have made of their parts: the newest weights are whole."""
        assert self.shard is not None
        used_here(map(local, self.weights))  # which may be let go of while this is under way
        for copy, flat in parts.items():
            self.shard.write(copy, flat)
        self.store.complete()

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
        if self.scheduler is not None:
            self.scheduler.step()

    def give_up(self) -> None:
        """Forget all gradients of a step that failed but those that the user had."""
        self._closed.clear()
        self._missing.clear()
        are_users = self._policy.keeps_gradients and not self._before  # again, or still
        for weight in () if are_users else self.weights:
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
    """The norm of every gradient, or of its shard that is here, and whose it is."""
    found = {
        place: torch.linalg.vector_norm(local(grad))
        for place, grad in zip(places, grads, strict=True)
        if grad is not None and place >= 0
    }
    return [*found], torch.stack([*found.values()]) if found else torch.empty(0, device="cpu")

"""Parts of a model that are updated on their own: the weights of a stage, and ends of tied ones.

    close    behind the last backward of an update: take its gradients, tell what they measure
    settle   in front of the first forward with the next version: change the weights

Between the two, norms and gradients of other devices arrive, while microbatches go on. Knows
gradients; knows neither lanes nor messages of microbatches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial, reduce
from typing import TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from weft.errors import NonfiniteError
from weft.ir.kinds import Direction
from weft.runtime.transport import Transport
from weft.runtime.transport.loopback import Loopback
from weft.runtime.transport.message import Message, Receive, Route, Send, Unknown
from weft.runtime.weights.norms import Entry
from weft.runtime.weights.policy import Rules
from weft.runtime.weights.versions import Stash

TIED = "the gradients of a tied weight"

Grads: TypeAlias = list[Tensor | None]


class Part:
    """Weights that are updated together on one device.

    part    the number under which its norms are told
    stage   where they are updated first
    places  where they stand in the model: in that order norms are added up
    tie     how gradients reach the other ends, where the weights are tied
    """

    def __init__(
        self,
        part: int,
        stage: int,
        stash: Stash,
        rules: Rules,
        *,
        places: Sequence[int],
        made: tuple[Optimizer | None, LRScheduler | None],
        tie: Tie | None = None,
    ) -> None:
        self._part, self.stage, self.stash, self._rules, self._tie = part, stage, stash, rules, tie
        self._places = dict(zip(stash.parameters, places, strict=True))
        self.optimizer, self._scheduler = made
        self._pending: deque[tuple[int, Grads]] = deque()
        self._told = 0  # updates whose gradients are whole

    def close(self, update: int) -> None:
        """Take the gradients of an update; change the weights if nothing has to be waited for."""
        grads = []
        for weight in self.stash.parameters:
            grads.append(weight.grad)
            weight.grad = None
        self._unscale(grads, update)
        self._pending.append((update, grads))
        if self._tie is not None:
            self._tie.send(update, grads[0])
            return
        self._told = update + 1
        self._tell(update, grads)
        if not self._rules.is_measuring or self._rules.is_known(update, self._part):
            self.settle(update + 1)

    def is_ready(self, version: int) -> bool:
        """Whether the weights of a version can be had now, where one process runs all devices."""
        return version <= self._told and all(
            not self._rules.is_measuring or self._rules.is_known(update, self._part)
            for update in range(self.stash.newest, version)
        )

    def announce(self, version: int | None = None) -> None:
        """Tell what the gradients of a tied weight measure, once those of all ends are here.

        Waits for what a version needs; without one, takes what there is.
        """
        if self._tie is None:
            return
        for place, (update, grads) in enumerate(self._pending):
            is_needed = self._tie.has(update) if version is None else update < version
            if update >= self._told and is_needed:
                total: Grads = [self._tie.total(update, grads[0])]
                self._pending[place] = (update, total)
                self._told = update + 1
                if self._tie.is_first:
                    self._tell(update, total)

    def settle(self, version: int) -> None:
        """Change the weights until they are of a version; ties were announced."""
        while self.stash.newest < version:
            self._apply(*self._pending.popleft())

    def _tell(self, update: int, grads: Grads) -> None:
        if self._rules.is_measuring:
            norms = {
                self._places[weight]: float(torch.linalg.vector_norm(grad))
                for weight, grad in zip(self.stash.parameters, grads, strict=True)
                if grad is not None
            }
            self._rules.board.tell(Entry(update, self._part), norms)

    def _unscale(self, grads: Grads, update: int) -> None:
        scale = self._rules.scale(update)
        for grad in grads if scale != 1 else ():
            if grad is not None:
                grad.mul_(1 / scale)

    def _apply(self, update: int, grads: Grads) -> None:
        reason, rules = self._rules.bad_loss(update), self._rules
        is_overflow = False
        if not reason and rules.is_measuring:
            norm = rules.norm(update, self._part)
            if not torch.isfinite(norm):
                is_overflow = rules.scaling is not None
                reason = f"the norm of the gradients of update {update} is {norm:g}"
            elif rules.clip is not None:
                _clip(grads, norm, rules.clip)
        if reason and (is_overflow or rules.nonfinite != "ignore"):
            if rules.nonfinite == "stop" and not is_overflow:
                remedy = "nonfinite='skip' leaves such updates out"
                raise NonfiniteError(f"{reason}; stage {self.stage} was not changed. {remedy}")
            self.stash.update(lambda: None)
        else:
            self.stash.update(partial(self._step, update, grads))

    def _step(self, update: int, grads: Grads) -> None:
        """Let the optimizer see these gradients, whatever has come since."""
        if self.optimizer is None:
            return
        later = [weight.grad for weight in self.stash.parameters]
        rate, rates = self._rules.rate(self.stage, update), []
        for weight, grad in zip(self.stash.parameters, grads, strict=True):
            weight.grad = grad
        for group in self.optimizer.param_groups:
            rates.append(group["lr"])
            group["lr"] = group["lr"] * rate if rate != 1 else group["lr"]
        self.optimizer.step()
        for group, own in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = own
        if self._scheduler is not None:
            self._scheduler.step()
        for weight, grad in zip(self.stash.parameters, later, strict=True):
            weight.grad = grad


class Tie:
    """One end of a tied weight: gradients of all ends meet at each of them.

    `ends` are their devices. Ends on one device meet in `local`. So many updates as `ahead` may be
    under way.
    """

    def __init__(
        self,
        number: int,
        ends: Sequence[int],
        index: int,
        transport: Transport,
        local: Loopback,
        ahead: int,
    ) -> None:
        self._index, self.is_first = index, index == 0
        self._sends: list[list[Send]] = []
        self._receives: list[dict[int, tuple[Transport, Message, Receive]]] = []
        for turn in range(ahead):
            sends, receives = [], {}
            for other, device in enumerate(ends):
                if other == index:
                    continue
                there = self._message(number, (turn, index, other), len(ends))
                back = self._message(number, (turn, other, index), len(ends))
                to = Route(there, ends[index], device, TIED, 0)
                of = Route(back, device, ends[index], TIED, 0)
                by = local if device == ends[index] else transport
                sends.append(by.sender(to, Unknown()))
                receives[other] = (by, back, by.receiver(of, Unknown()))
            self._sends.append(sends)
            self._receives.append(receives)

    def _message(self, number: int, place: tuple[int, int, int], ends: int) -> Message:
        """The name of a gradient by its turn, its end and the end that it goes to."""
        turn, one, other = place
        return Message(number, Direction.BOTH, (turn * ends + one) * ends + other)

    def send(self, update: int, grad: Tensor | None) -> None:
        for send in self._sends[update % len(self._sends)]:
            send([grad])

    def has(self, update: int) -> bool:
        """Whether the other ends' gradients are here, where one process runs all devices."""
        return all(
            isinstance(by, Loopback) and by.has(message)
            for by, message, _ in self._receives[update % len(self._receives)].values()
        )

    def total(self, update: int, grad: Tensor | None) -> Tensor | None:
        """The sum over all ends, in the order of their stages, of those that have one."""
        parts = {self._index: grad}
        for other, (_, _, receive) in self._receives[update % len(self._receives)].items():
            (parts[other],) = receive()
        found = [part for _, part in sorted(parts.items()) if part is not None]
        if len(found) == 1:
            return found[0].clone()  # which another end may have, too
        return reduce(torch.add, found) if found else None


def _clip(grads: Grads, norm: Tensor, most: float) -> None:
    share = torch.clamp(most / (norm + 1e-6), max=1.0)
    for grad in grads:
        if grad is not None:
            grad.mul_(share.to(grad.device))

"""Delayed training: what an asynchronous schedule means, in one process, with no pipeline at all.

    for each update t
        for each microbatch i: one gradient, with stage s as it was after `version(t, i, s)` updates
        add them up, clip them, and change the newest weights by them

Schedules differ in `version` alone; those of the literature stand at the end. Shares nothing with
the executor but the definition of what is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from weft.errors import InputError, NonfiniteError
from weft.runtime.batch import Data, cut, weights_of
from weft.runtime.randomness import Draw, keyed
from weft.runtime.split import names_of

Version: TypeAlias = Callable[[int, int, int], int]  # of an update, a microbatch of it, a stage
NamedParameters: TypeAlias = Iterable[tuple[str, nn.Parameter]]
Weights: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """A weight as a stage uses it; `home` is the first stage that does."""

    stage: int
    name: str
    weight: nn.Parameter
    home: int
    home_name: str


class Delayed:
    """Trains the stages of a model with weights of chosen versions.

    version       which version a stage uses for a microbatch of an update, in both directions
    backward      another one for the backward, where forward and backward do not agree
    microbatches  of an update
    optimizer     makes the optimizer of one stage from its named parameters
    scheduler     makes the learning-rate scheduler of an optimizer; steps once for each update
    clip          the largest norm of the gradients of each group of stages in `groups`
    groups        stages that share a norm; all of them do unless given
    predict       start from where the newest weights will be if every update is like the last
    temper        updates in which a stage's learning rate grows from lr / lag to lr (PipeMare)
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        version: Version,
        *,
        microbatches: int,
        loss: Callable[..., Tensor],
        optimizer: Callable[[NamedParameters], Optimizer],
        backward: Version | None = None,
        scheduler: Callable[[Optimizer], LRScheduler] | None = None,
        clip: float | None = None,
        groups: Sequence[Sequence[int]] | None = None,
        seed: int = 0,
        nonfinite: Literal["stop", "skip", "ignore"] = "stop",
        predict: bool = False,
        temper: int | None = None,
    ) -> None:
        self._stages, self._version, self._backward = stages, version, backward
        self._microbatches, self._loss, self._clip = microbatches, loss, clip
        self._groups = groups or [range(len(stages))]
        self._nonfinite, self._predict, self._temper = nonfinite, predict, temper
        self._draw = Draw(seed)
        for index, stage in enumerate(stages):
            keyed(stage, self._draw, names_of(stage, index))
        self._uses = _uses(stages)
        self._optimizers = {
            index: optimizer([(use.name, use.weight) for use in self._at_home(index)])
            for index in range(len(stages))
            if any(use.weight.requires_grad for use in self._at_home(index))
        }
        self._schedulers = [scheduler(made) for made in self._optimizers.values() if scheduler]
        self._versions: list[dict[int, Weights]] = [
            {0: self._copied(s)} for s in range(len(stages))
        ]
        self.updates = 0

    def step(self, batch: Data, target: Data, *, weights: Sequence[float] | None = None) -> Tensor:
        """One update; the loss of its batch."""
        count = self._microbatches
        inputs, targets = cut(batch, count, "batch"), cut(target, count, "target")
        shares = weights_of(weights, count)
        losses, sums = [], dict[Use, Tensor]()
        for microbatch in range(count):
            self._draw.step, self._draw.microbatch = self.updates, microbatch
            used = self._used(microbatch)
            with self._swapping(used, microbatch):
                output = self._whole_model(inputs[microbatch], used)
                loss = self._loss(output, *targets[microbatch]) * shares[microbatch]
                self._add_gradients(loss, used, sums)
            losses.append(loss.detach())
        total = torch.stack(losses).sum()
        self._update(sums, total)
        return total

    # one microbatch

    def _used(self, microbatch: int) -> dict[Use, Tensor]:
        """What every stage computes with; a tied weight is as its first stage has it."""
        return {
            use: self._at(use, self._version(self.updates, microbatch, use.home)).requires_grad_(
                use.weight.requires_grad
            )
            for use in self._uses
        }

    def _at(self, use: Use, version: int) -> Tensor:
        kept = self._versions[use.home]
        if version not in kept:
            raise InputError(f"stage {use.home} asks for version {version} of {sorted(kept)}")
        value, lag = kept[version][use.home_name], self.updates - version
        if self._predict and lag and version - 1 in kept:
            return value + lag * (value - kept[version - 1][use.home_name])
        return value.detach()

    def _whole_model(self, inputs: Sequence[Tensor], used: dict[Use, Tensor]) -> Tensor:
        values = tuple(inputs)
        for index, stage in enumerate(self._stages):
            given = {use.name: weight for use, weight in used.items() if use.stage == index}
            out = functional_call(stage, given, values)
            values = out if isinstance(out, tuple) else (out,)
        return values[0]

    def _add_gradients(
        self, loss: Tensor, used: dict[Use, Tensor], sums: dict[Use, Tensor]
    ) -> None:
        learning = [use for use, weight in used.items() if weight.requires_grad]
        leaves = [used[use] for use in learning]
        grads: Sequence[Tensor | None] = torch.autograd.grad(loss, leaves, allow_unused=True)
        for use, grad in zip(learning, grads, strict=True):
            if grad is not None:
                sums[use] = sums[use] + grad if use in sums else grad

    @contextmanager
    def _swapping(self, used: dict[Use, Tensor], microbatch: int) -> Iterator[None]:
        """Let the backward find other weights than the forward left, where they do not agree."""
        if self._backward is None:
            yield
            return
        later = {
            weight.untyped_storage().data_ptr(): self._at(
                use, self._backward(self.updates, microbatch, use.home)
            )
            for use, weight in used.items()
        }

        def pack(saved: Tensor) -> Tensor:
            weight = later.get(saved.untyped_storage().data_ptr())
            if weight is None:
                return saved
            return weight.as_strided(saved.size(), saved.stride(), saved.storage_offset())

        with saved_tensors_hooks(pack, lambda saved: saved):
            yield

    # an update

    def _update(self, sums: dict[Use, Tensor], loss: Tensor) -> None:
        is_bad = self._nonfinite != "ignore" and not torch.isfinite(loss)
        if is_bad and self._nonfinite == "stop":
            raise NonfiniteError(f"the loss of update {self.updates} is {float(loss):g}")
        if not is_bad:
            self._set_gradients(sums)
            for group in self._groups if self._clip is not None else ():
                weights = [use.weight for stage in group for use in self._at_home(stage)]
                nn.utils.clip_grad_norm_(weights, self._clip or 0.0, foreach=False)
            for index, optimizer in self._optimizers.items():
                with self._tempered(index, optimizer):
                    optimizer.step()
            for scheduler in self._schedulers:
                scheduler.step()
        for optimizer in self._optimizers.values():
            optimizer.zero_grad()
        self.updates += 1
        for index, kept in enumerate(self._versions):
            kept[self.updates] = self._copied(index)
            kept.pop(self.updates - len(self._stages) - 2, None)

    def _set_gradients(self, sums: dict[Use, Tensor]) -> None:
        """A tied weight gets the sum over its stages, in their order."""
        ends: dict[nn.Parameter, list[Tensor]] = {}
        for use in self._uses:
            if use in sums:
                ends.setdefault(use.weight, []).append(sums[use])
        for weight, parts in ends.items():
            weight.grad = reduce(torch.add, parts)

    @contextmanager
    def _tempered(self, stage: int, optimizer: Optimizer) -> Iterator[None]:
        """A lower learning rate, the more so the later the stage's gradients come."""
        lag = self.updates - self._version(self.updates, 0, stage)
        if self._temper is None or lag < 1:
            yield
            return
        power = 1 - min(self.updates / self._temper, 1)
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] / lag**power
        yield
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def _at_home(self, stage: int) -> list[Use]:
        """The weights that this stage is the first to use."""
        return [use for use in self._uses if use.stage == use.home == stage]

    def _copied(self, stage: int) -> Weights:
        return {use.name: use.weight.detach().clone() for use in self._at_home(stage)}


def _uses(stages: Sequence[nn.Module]) -> list[Use]:
    """Every weight of every stage, in model order."""
    homes: dict[nn.Parameter, tuple[int, str]] = {}
    uses = []
    for index, stage in enumerate(stages):
        for name, weight in stage.named_parameters():
            uses.append(Use(index, name, weight, *homes.setdefault(weight, (index, name))))
    return uses


# Versions of the literature, by update t, microbatch i and stage s of D devices.


def synchronous() -> Version:
    """Every stage uses the newest weights: 1F1B, GPipe, data parallel."""
    return lambda t, i, s: t


def pipedream(devices: int) -> Version:
    """What a stage has when its forward starts; an update for each microbatch."""
    return lambda t, i, s: max(0, t - (devices - 1 - s))


def vertical_sync(devices: int) -> Version:
    """PipeDream, with what the first stage had in all stages."""
    return lambda t, i, s: max(0, t - (devices - 1))


def pipedream_2bw(fresh_from: int | None = None) -> Version:
    """One update late; from microbatch `fresh_from` of an update on (D - 1), not late."""
    return lambda t, i, s: t if fresh_from is not None and i >= fresh_from else max(0, t - 1)


def wpipe(devices: int, fresh_from: int | None = None) -> Version:
    """The first D of 2 D stages as 2BW, fresh after the first round; the others not late."""
    late = pipedream_2bw(fresh_from)
    return lambda t, i, s: late(t, i, s) if s < devices else t


def after(updates: int, version: Version) -> Version:
    """Synchronous for so many updates, then another version that starts from there."""
    return lambda t, i, s: t if t < updates else updates + version(t - updates, i, s)

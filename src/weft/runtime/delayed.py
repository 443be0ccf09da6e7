"""Delayed training: what an asynchronous schedule means, in one process, with no pipeline at all.

    for each update t
        for each microbatch i: one gradient, with stage s as it was after `version(t, i, s)` updates
        add them up, clip them, and change the newest weights by them

Schedules differ in `version` alone; those of the literature stand at the end. Shares nothing with
the executor but the definition of what is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from weft.errors import InputError, NonfiniteError
from weft.ir.kinds import Kind
from weft.ir.lanes import Period
from weft.ir.program import Program
from weft.runtime.batch import Data, cut, weights_of
from weft.runtime.reference import copied, handed
from weft.runtime.stage.cast import without_autocast
from weft.runtime.stage.deferred import accumulate, hooked
from weft.runtime.stage.randomness import Draw, Drawing, Drawn
from weft.runtime.stage.split import called, names_of
from weft.runtime.stage.swap import Slots
from weft.runtime.stage.values import Value, contiguous

Version: TypeAlias = Callable[[int, int, int], int]  # of an update, a microbatch of it, a stage
Recomputed: TypeAlias = Callable[[int, int, int], bool]  # of the same
Order: TypeAlias = Callable[[int, int], Sequence[int]]  # of an update and a stage
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


Gradients: TypeAlias = dict[Use, Tensor | None]  # of a microbatch


class Delayed:
    """Trains the stages of a model with weights of chosen versions.

    version       which version a stage uses for a microbatch of an update, in both directions
    backward      another one for the backward, where forward and backward do not agree
    microbatches  of an update
    order         in which order a stage's gradients of an update are added; else as they come
    optimizer     makes the optimizer of one stage from its named parameters
    scheduler     makes the learning-rate scheduler of an optimizer; steps once for each update
    clip          the largest norm of the gradients of each group of stages in `groups`
    groups        stages that share a norm; all of them do unless given
    warmup        so many updates are synchronous; versions then start from there
    predict       start from where the newest weights will be if every update is like the last
    temper        updates in which a stage's learning rate grows from lr / lag to lr (PipeMare)
    recompute     run each stage again in the backward, or some for some microbatches; matters
                  where forward and backward do not agree
    precision     what stages compute with, where that is not the type of the weights
    scale         losses are enlarged so much; a group whose gradients are not finite is skipped
    interval      updates without a skip behind which the scale doubles; it halves behind a skip.
                  None keeps it as it is
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
        order: Order | None = None,
        scheduler: Callable[[Optimizer], LRScheduler] | None = None,
        clip: float | None = None,
        groups: Sequence[Sequence[int]] | None = None,
        seed: int = 0,
        nonfinite: Literal["stop", "skip", "ignore"] = "stop",
        warmup: int = 0,
        predict: bool = False,
        temper: int | None = None,
        recompute: bool | Recomputed = False,
        precision: torch.dtype | None = None,
        scale: float | None = None,
        interval: int | None = None,
    ) -> None:
        self._stages, self._backward, self._warmup = stages, backward, warmup
        self._order = order or (lambda update, stage: range(microbatches))
        self._version = _after(warmup, version) if warmup else version
        self._microbatches, self._loss, self._clip = microbatches, loss, clip
        self._groups = groups or [range(len(stages))]
        self._nonfinite, self._predict, self._temper = nonfinite, predict, temper
        self._precision, self._interval = precision, interval
        self._recompute = recompute if callable(recompute) else lambda t, i, s: bool(recompute)
        self._scales = [scale or 1.0]  # behind so many updates
        self._good, self._is_scaled = 0, scale is not None
        self._draw = Draw(seed)
        Drawing([(names_of(stage, index), stage) for index, stage in enumerate(stages)], self._draw)
        weights = (weight for stage in stages for weight in stage.parameters())
        self._device = next((weight.device for weight in weights), torch.device("cpu"))
        self._slots = [*map(Slots, stages)]
        self._uses = _uses(stages)
        self._optimizers = {
            index: optimizer([(use.name, use.weight) for use in self._at_home(index)])
            for index in range(len(stages))
            if any(use.weight.requires_grad for use in self._at_home(index))
        }
        self._schedulers = {
            index: scheduler(made) for index, made in self._optimizers.items() if scheduler
        }
        self._versions: list[dict[int, Weights]] = [
            {0: self._copied(s)} for s in range(len(stages))
        ]
        self.updates = 0

    def step(self, batch: Data, target: Data, *, weights: Sequence[float] | None = None) -> Tensor:
        """One update; the loss of its batch."""
        count = self._microbatches
        inputs, targets = cut(batch, count, "batch"), cut(target, count, "target")
        inputs, targets = (
            [copied(value, self._device) for value in values] for values in (inputs, targets)
        )
        shares = weights_of(weights, count)
        losses, gradients, scale = [], list[Gradients](), self._scale()
        for microbatch in range(count):
            self._draw.step = self.updates
            used = self._used(microbatch, self._version)
            given, wanted, share = inputs[microbatch], targets[microbatch], shares[microbatch]
            buffers = [_buffers(stage) for stage in self._stages]
            other = self._used(microbatch, self._backward or self._version)
            is_swapped = self._backward is not None and not self._is_again(microbatch)
            swapping = _swapping(used, other) if is_swapped else nullcontext()
            with swapping, self._drawing(microbatch) as drawn:
                output = self._whole_model(given.cloned(), used)
                self._draw.enter_loss()
                loss = self._loss(output, *wanted.arguments) * share
                losses.append(loss.detach())
            if self._backward is not None and self._is_again(microbatch):
                data = (given, wanted, share * scale)
                gradients.append(self._gradients_again(microbatch, data, (used, other), buffers))
                continue
            with self._draw.backward(drawn), without_autocast(self._device), self._holding(used):
                gradients.append(self._gradients(loss * scale, used))
        total = torch.stack(losses).sum()
        self._update(self._summed(gradients), total, scale)
        return total

    # one microbatch

    def _used(self, microbatch: int, version: Version) -> dict[Use, Tensor]:
        """What every stage computes with; a tied weight is as its first stage has it."""
        used = {}
        for use in (use for use in self._uses if use.weight.requires_grad):
            value = self._at(use, version(self.updates, microbatch, use.home))
            if self._precision is not None:
                value = value.to(self._precision)
            used[use] = value.requires_grad_()
        return used

    def _at(self, use: Use, version: int) -> Tensor:
        kept = self._versions[use.home]
        if version not in kept:
            raise InputError(f"stage {use.home} asks for version {version} of {sorted(kept)}")
        value, lag = kept[version][use.home_name], self.updates - version
        if self._predict and lag and version > self._warmup:
            return value + lag * (value - kept[version - 1][use.home_name])
        return value.detach()

    @contextmanager
    def _holding(self, used: dict[Use, Tensor]) -> Iterator[None]:
        """Let checkpoints inside a backward find the weights of their forward."""
        with ExitStack() as stack:
            for index, slots in enumerate(self._slots):
                mine = {use.name: weight for use, weight in used.items() if use.stage == index}
                stack.enter_context(slots.holding(mine))
            yield

    def _drawing(self, microbatch: int) -> AbstractContextManager[Drawn]:
        return self._draw.forward(microbatch, device=self._device)

    def _whole_model(self, inputs: Value, used: dict[Use, Tensor]) -> Any:
        out: Any = None
        for index in range(len(self._stages)):
            value = handed(Value.of(out, f"stage {index - 1}"), 1)[0] if index else inputs
            out = self._one_stage(index, value, used)
        return out

    def _one_stage(
        self,
        index: int,
        value: Value,
        used: dict[Use, Tensor],
        buffers: Weights | None = None,
    ) -> Any:
        given = {use.name: weight for use, weight in used.items() if use.stage == index}
        if self._precision is not None:
            value = value.with_leaves(
                leaf.to(self._precision) if leaf.is_floating_point() else leaf
                for leaf in value.leaves
            )
        with self._slots[index].holding(given | (buffers or {})):
            return called(self._stages[index], [value])

    def _gradients_again(
        self,
        microbatch: int,
        data: tuple[Value, Value, float],
        weights: tuple[dict[Use, Tensor], dict[Use, Tensor]],
        buffers: Sequence[Weights],
    ) -> Gradients:
        """Each stage by itself: recomputed with other weights from what the first run gave it."""
        (inputs, target, share), (used, other) = data, weights
        total: Gradients = {}
        roots: Sequence[Tensor]
        with self._drawing(microbatch):
            values = [inputs]
            for index in range(len(self._stages) - 1):
                given = values[-1].with_leaves(map(contiguous, values[-1].leaves))
                out = self._one_stage(index, given.cloned(), used, _copied(buffers[index]))
                values.append(Value.of(out, f"stage {index}"))
        gradients: Sequence[Tensor | None] = ()
        for index in reversed(range(len(self._stages))):
            leaves = values[index].with_leaves(map(contiguous, values[index].leaves))
            pairs = zip(leaves.leaves, values[index].leaves, strict=True)
            passing = [leaf for leaf, made in pairs if index and made.requires_grad]
            for leaf in passing:
                leaf.requires_grad_()
            is_again = self._recompute(self.updates, microbatch, index)
            again = other if is_again else used
            swapping = nullcontext() if is_again else _swapping(used, other)
            with swapping, self._drawing(microbatch):
                out = self._one_stage(index, leaves.cloned(), again, buffers[index])
                if index == len(self._stages) - 1:
                    self._draw.enter_loss()
                    out = self._loss(out, *target.arguments) * share
            if index == len(self._stages) - 1:
                roots, gradients = [out], [torch.ones_like(out)]
            else:
                outputs = [leaf for leaf in Value.of(out, "").leaves if leaf.requires_grad]
                both = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None]
                roots, gradients = [o for o, _ in both], [g for _, g in both]
            if roots:
                with without_autocast(self._device):
                    torch.autograd.backward(roots, gradients)
            gradients = [None if leaf.grad is None else contiguous(leaf.grad) for leaf in passing]
            total |= {use: weight.grad for use, weight in again.items() if use.stage == index}
        return total

    def _gradients(self, loss: Tensor, used: dict[Use, Tensor]) -> Gradients:
        learning = [use for use, weight in used.items() if weight.requires_grad]
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        return {use: used[use].grad for use in learning}

    def _summed(self, gradients: Sequence[Gradients]) -> dict[Use, Tensor]:
        """Over the microbatches of an update, in the order of each stage."""
        sums: dict[Use, Tensor] = {}
        for use in self._uses:
            for microbatch in self._order(self.updates, use.stage):
                self._add(use, gradients[microbatch].get(use), sums)
        return sums

    def _add(self, use: Use, grad: Tensor | None, sums: dict[Use, Tensor]) -> None:
        if grad is None:
            return
        weight = use.weight
        before, weight.grad = weight.grad, sums.get(use)
        accumulate(weight, hooked(weight, grad))
        assert weight.grad is not None
        sums[use], weight.grad = weight.grad, before

    def _is_again(self, microbatch: int) -> bool:
        """Whether any stage is recomputed for a microbatch of this update."""
        stages = range(len(self._stages))
        return any(self._recompute(self.updates, microbatch, stage) for stage in stages)

    # an update

    def _update(self, sums: dict[Use, Tensor], loss: Tensor, scale: float) -> None:
        reason = None
        if self._nonfinite != "ignore" and not torch.isfinite(loss):
            reason = f"the loss of update {self.updates} is {float(loss):g}"
            self._refuse(reason)
        self._set_gradients(sums, scale)
        is_good = True
        for group in self._groups:
            is_good &= self._update_group(group, is_skipped=reason is not None)
        self._keep_scale(is_good=is_good)
        for optimizer in self._optimizers.values():
            optimizer.zero_grad()
        self.updates += 1
        least = min(self._oldest() - 1, self.updates - len(self._stages) - 1)
        for index, kept in enumerate(self._versions):
            kept[self.updates] = self._copied(index)
            for version in [version for version in kept if version < least]:
                del kept[version]

    def _update_group(self, group: Sequence[int], *, is_skipped: bool) -> bool:
        """Clip and change the weights of some stages; whether their gradients are finite."""
        weights = [use.weight for stage in group for use in self._at_home(stage)]
        is_finite = True
        if self._is_scaled or self._clip is not None:
            most = float("inf") if self._clip is None else self._clip
            grads = [w.grad for w in weights if w.grad is not None]
            norm = nn.utils.get_total_norm(grads, foreach=False)
            is_finite = bool(torch.isfinite(norm))
            if is_finite and self._clip is not None:
                nn.utils.clip_grads_with_norm_(weights, most, norm, foreach=False)
            if not is_finite and not self._is_scaled and self._nonfinite != "ignore":
                self._refuse(f"the norm of the gradients of update {self.updates} is {norm:g}")
        if is_skipped or not (is_finite or self._nonfinite == "ignore"):
            return is_finite
        for index in group:
            if index in self._optimizers:
                with self._tempered(index, self._optimizers[index]):
                    self._optimizers[index].step()
                if index in self._schedulers:
                    self._schedulers[index].step()
        return is_finite

    def _refuse(self, reason: str) -> None:
        if self._nonfinite == "stop":
            raise NonfiniteError(reason)

    def _scale(self) -> float:
        """By the updates that all weights of this one have seen."""
        return self._scales[self._oldest()]

    def _oldest(self) -> int:
        """The oldest version that the next update uses anywhere."""
        stages, microbatches = range(len(self._stages)), range(self._microbatches)
        return min(self._version(self.updates, i, s) for s in stages for i in microbatches)

    def _keep_scale(self, *, is_good: bool) -> None:
        scale, self._good = self._scales[-1], self._good + 1 if is_good else 0
        if self._interval is not None and not is_good:
            scale /= 2
        elif self._interval is not None and self._good == self._interval:
            scale, self._good = 2 * scale, 0
        self._scales.append(scale)

    def _set_gradients(self, sums: dict[Use, Tensor], scale: float) -> None:
        """A tied weight gets the sum over its stages, in their order."""
        ends: dict[nn.Parameter, list[Tensor]] = {}
        for use in self._uses:
            if use in sums:
                ends.setdefault(use.weight, []).append(sums[use] * (1 / scale))
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


def _buffers(stage: nn.Module) -> Weights:
    return _copied(dict(stage.named_buffers()))


def _copied(tensors: Weights) -> Weights:
    return {name: tensor.clone() for name, tensor in tensors.items()}


@contextmanager
def _swapping(used: dict[Use, Tensor], other: dict[Use, Tensor]) -> Iterator[None]:
    """Let the backward of what runs here find other weights than the forward used."""
    later = {weight.untyped_storage().data_ptr(): other[use] for use, weight in used.items()}

    def pack(saved: Tensor) -> Tensor:
        weight = later.get(saved.untyped_storage().data_ptr())
        if weight is None:
            return saved
        return weight.detach().as_strided(saved.size(), saved.stride(), saved.storage_offset())

    with saved_tensors_hooks(pack, lambda saved: saved):
        yield


def _uses(stages: Sequence[nn.Module]) -> list[Use]:
    """Every weight of every stage, in model order."""
    homes: dict[nn.Parameter, tuple[int, str]] = {}
    uses = []
    for index, stage in enumerate(stages):
        for name, weight in stage.named_parameters():
            uses.append(Use(index, name, weight, *homes.setdefault(weight, (index, name))))
    return uses


def _after(updates: int, version: Version) -> Version:
    """Synchronous for so many updates, then another version that starts from there."""
    return lambda t, i, s: t if t < updates else updates + version(t - updates, i, s)


def versions_of(program: Program) -> tuple[Version, Version | None]:
    """What the forwards of a program that does not flush use; its backwards, where they differ."""
    period = program.period or Period((), (), microbatches=1)
    step, shift = program.microbatches, period.microbatches
    found = {Kind.F: dict[tuple[int, int], int](), Kind.B: dict[tuple[int, int], int]()}
    for action in program.unrolled(1).actions:
        if action.kind in found and action.microbatch is not None:
            found[action.kind][action.stage, action.microbatch] = action.version or 0
    last = max(microbatch for _, microbatch in found[Kind.F]) + 1

    def version(kind: Kind, t: int, i: int, s: int) -> int:
        turns = max(0, -(-(t * step + i + 1 - last) // shift))
        return found[kind][s, t * step + i - turns * shift] + turns * period.versions

    backward = None if program.is_stashing else partial(version, Kind.B)
    return partial(version, Kind.F), backward


def order_of(program: Program) -> Order:
    """In which order the stages of a program that does not flush add their gradients."""
    period = program.period or Period((), (), microbatches=program.microbatches)
    found: dict[tuple[int, int], list[int]] = {}
    for action in program.unrolled(1).actions:
        if action.kind is Kind.B and action.microbatch is not None:
            update, index = divmod(action.microbatch, program.microbatches)
            found.setdefault((update, action.stage), []).append(index)
    last = max(update for update, _ in found) + 1

    def order(update: int, stage: int) -> Sequence[int]:
        turns = max(0, -(-(update + 1 - last) // period.versions))
        return found[update - turns * period.versions, stage]

    return order


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


def restarted(starts: Sequence[int], version: Version) -> Version:
    """Another version that starts again at these updates, from the weights there."""

    def found(t: int, i: int, s: int) -> int:
        start = max((start for start in starts if start <= t), default=0)
        return start + version(t - start, i, s)

    return found

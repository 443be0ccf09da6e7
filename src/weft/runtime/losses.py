"""Losses: what a microbatch adds to the loss of its step, and ready-made loss functions.

    step = sum over microbatches of  main * its valid targets / those of the batch  +  extra / N

A loss function returns `main`, or the pair `(main, extra)`; where it has a method `count`, that
says how many targets are valid. Without one, `main` counts 1/N as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional

from weft.errors import InputError
from weft.runtime.batch import weights_of
from weft.runtime.precision import short
from weft.runtime.stage.graphs import nodes_of
from weft.runtime.stage.values import Value

__all__ = ["CrossEntropy"]

Pair: TypeAlias = tuple[Tensor, Tensor]  # the mean over valid targets, and auxiliary losses
LossFunction: TypeAlias = Callable[..., Tensor | Pair]  # of an output and the target


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """Cross entropy of logits (..., V) and targets (...), the mean over the valid ones.

    Its microbatches count by how many valid targets they have, so that the loss of a step is that
    of the whole batch. Logits in half precision are taken to fp32 first.

    ignore_index     the target of padding
    shift            whether targets are the tokens themselves, so that each position is to predict
                     the next one, as in causal language models
    label_smoothing  as in torch
    """

    ignore_index: int = -100
    shift: bool = False
    label_smoothing: float = 0.0

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.shift:
            logits = logits[:, :-1]
        precise = logits.float() if logits.itemsize < torch.float32.itemsize else logits
        return functional.cross_entropy(
            precise.reshape(-1, logits.shape[-1]),
            self._wanted(target).reshape(-1),
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
        )

    def count(self, target: Tensor) -> Tensor:
        """How many targets are valid, on their device."""
        return (self._wanted(target) != self.ignore_index).sum()

    def _wanted(self, target: Tensor) -> Tensor:
        return target[:, 1:] if self.shift else target


# how much a microbatch counts


class LossShare(NamedTuple):
    """How much the losses of a microbatch count; `main` is None where no target is valid."""

    main: float | None
    extra: float


def shares_of(
    loss: LossFunction,
    targets: Sequence[Value],
    weights: Sequence[float] | None,
    replicas: int = 1,
    total_of: Callable[[int], int] = int,
) -> tuple[LossShare, ...]:
    """How much each microbatch of a batch counts: by given weights, valid targets, or alike.

    Other replicas have microbatches, too; `total_of` adds what they count to what is counted here.
    """
    equal = [weight / replicas for weight in weights_of(weights, len(targets))]
    if weights is not None or not is_counting(loss):
        return tuple(LossShare(weight, weight) for weight in equal)
    counts = counts_of(loss, targets)
    total = total_of(sum(counts))
    return tuple(
        LossShare(count / total if count else None, extra)
        for count, extra in zip(counts, equal, strict=True)
    )


def is_counting(loss: LossFunction) -> bool:
    """Whether a loss says how many targets are valid."""
    return callable(getattr(loss, "count", None))


def counts_of(loss: LossFunction, targets: Sequence[Value]) -> list[int]:
    """The valid targets of each microbatch, by a loss that counts them.

    The host waits once for a device that has counted them all.
    """
    found = [loss.count(*target.arguments) for target in targets]  # type: ignore[attr-defined]
    if all(isinstance(count, Tensor) for count in found):
        found = torch.stack(found).tolist()
    return [int(count) for count in found]


# what it adds


class Parts(NamedTuple):
    """What a loss function returned for a microbatch."""

    main: Tensor
    extra: Tensor | None

    @classmethod
    def of(cls, returned: Any) -> Parts:
        if isinstance(returned, Tensor):
            return cls(_one_number(returned), None)
        if isinstance(returned, tuple) and len(returned) == 2:
            main, extra = returned
            if isinstance(main, Tensor) and isinstance(extra, Tensor):
                return cls(_one_number(main), _one_number(extra))
        raise InputError(
            f"the loss returns a {type(returned).__name__}; let it return a tensor, or a pair of"
            f" tensors: the mean over valid targets, and the sum of auxiliary losses"
        )

    def weighted(self, share: LossShare, output: Any) -> Tensor:
        """What a microbatch with this output adds to the loss of its step."""
        main = _silent(self.main, output) if share.main is None else self.main * share.main
        return main if self.extra is None else main + self.extra * share.extra


def _one_number(part: Tensor) -> Tensor:
    """A loss, refused where torch could not differentiate it either."""
    if part.numel() != 1:
        raise InputError(
            f"the loss returns a tensor of shape {list(part.shape)}; let it return one number for a"
            f" microbatch, like its mean"
        )
    if part.is_complex():
        raise InputError(f"the loss returns {short(part.dtype)}; let it return a real number")
    return part


def refuse_constant(loss: Tensor) -> None:
    """Refuse to go back from a loss by which nothing would be trained, as torch does."""
    if not loss.requires_grad:
        raise InputError(
            "the loss of a microbatch depends on nothing that learns: look for detach(), argmax or"
            " item() on its way from the weights, or for weights that are all frozen; where a"
            " microbatch has nothing to learn from, let its loss be zero times its outputs"
        )


def _silent(main: Tensor, output: Any) -> Tensor:
    """Zero, with gradients of zero where `main` has some: a mean over nothing is nan."""
    zero = main.new_zeros(())
    if not main.requires_grad:
        return zero
    reached = {*nodes_of([main])}
    for leaf in _leaves(output):
        if leaf.requires_grad and get_gradient_edge(leaf).node in reached:
            zero = zero + leaf.flatten()[:0].sum().to(zero.dtype)
    return zero


def _leaves(output: Any) -> Sequence[Tensor]:
    """The tensors of what a last stage returns, which may be no tree of them."""
    try:
        return Value.of(output, "what the last stage returns").leaves
    except InputError:
        return ()

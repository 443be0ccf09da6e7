"""Cuts: which part of every weight each copy of a stage updates, and keeps optimizer state of.

    by rows    weight 0   |  copy 0  |  copy 1  |      for optimizers that treat elements one by one
               weight 1   | copy 0 | copy 1 |
    whole      weight 0   |       copy 0        |      for those that treat weights one by one
               weight 1   |      copy 1     |

A part is a view of its weight with as many dimensions. Knows tensors; knows no gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, optim
from torch.optim import Optimizer

from weft.errors import InputError
from weft.runtime.device.shards import is_sharded

# Of these, what becomes of an element depends on that element and its gradient alone.
ELEMENTWISE: frozenset[type[Optimizer]] = frozenset(
    {
        optim.ASGD,
        optim.Adadelta,
        optim.Adagrad,
        optim.Adam,
        optim.AdamW,
        optim.Adamax,
        optim.NAdam,
        optim.RAdam,
        optim.RMSprop,
        optim.Rprop,
        optim.SGD,
    }
)

REFUSED: dict[type[Optimizer], str] = {
    optim.SparseAdam: "takes sparse gradients, which are not summed over copies",
}


class WeightCut(NamedTuple):
    """Where a weight is cut along one of its dimensions: copy i has what is between two bounds."""

    dimension: int
    bounds: tuple[int, ...]

    def part(self, tensor: Tensor, copy: int) -> Tensor:
        """The part of a copy: a view; the tensor itself where that is all of it."""
        start, stop = self.bounds[copy : copy + 2]
        if stop - start == self.bounds[-1]:
            return tensor
        line = tensor if tensor.dim() else tensor.reshape(1)
        return line.narrow(self.dimension, start, stop - start)

    def only(self, copy: int) -> WeightCut:
        """All of it for one copy."""
        copies = len(self.bounds) - 1
        return WeightCut(self.dimension, (*[0] * (copy + 1), *[self.bounds[-1]] * (copies - copy)))

    def is_empty(self, copy: int) -> bool:
        """Whether a copy has nothing of it."""
        return self.bounds[copy] == self.bounds[copy + 1]


def by_rows(weights: Sequence[Tensor], copies: int) -> list[WeightCut]:
    """Every weight cut evenly, along the first of its dimensions that has enough for all copies.

    Where none has, along the longest.
    """
    return [_even(weight, copies) for weight in weights]


def _even(weight: Tensor, copies: int) -> WeightCut:
    sizes = [*weight.shape] or [1]
    wide = [place for place, size in enumerate(sizes) if size >= copies]
    dimension = wide[0] if wide else sizes.index(max(sizes))
    size = sizes[dimension]
    return WeightCut(dimension, tuple(size * copy // copies for copy in range(copies + 1)))


def by_weights(weights: Sequence[Tensor], copies: int) -> list[WeightCut]:
    """Every weight whole: the largest first, each to the copy that has least so far."""
    load, cuts = [0] * copies, dict[int, WeightCut]()
    for place in sorted(range(len(weights)), key=lambda place: -weights[place].numel()):
        owner = load.index(min(load))
        load[owner] += weights[place].numel()
        size = weights[place].shape[0] if weights[place].dim() else 1
        cuts[place] = WeightCut(0, (*[0] * (owner + 1), *[size] * (copies - owner)))
    return [cuts[place] for place in range(len(weights))]


def is_elementwise(optimizer: Optimizer) -> bool:
    """Whether weights may be cut for it; a class that torch does not have is not known to be so."""
    for kind, reason in REFUSED.items():
        if isinstance(optimizer, kind):
            raise InputError(
                f"{type(optimizer).__name__} {reason}: its state cannot be sharded over copies of a"
                f" stage. Leave out shard_optimizer=True, or use another optimizer"
            )
    return type(optimizer) in ELEMENTWISE


def is_rounded_by_place(weight: Tensor) -> bool:
    """Whether a sum of one of its elements depends on where that lies in memory.

    On a CPU, torch adds half precision many at a time in single precision, and rounds what is left
    over twice.
    """
    return weight.device.type == "cpu" and weight.itemsize < torch.float32.itemsize


def check_cuttable(stage: int, weights: Sequence[Tensor]) -> None:
    """Refuse weights that are parts of larger ones already."""
    if any(is_sharded(weight) for weight in weights):
        raise InputError(
            f"stage {stage} has weights that are DTensors, which are spread over devices already:"
            f" their optimizer state is not sharded over copies of the stage as well. Leave out"
            f" shard_optimizer=True"
        )

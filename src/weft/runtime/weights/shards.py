"""Shards: the parts of a parameter group that one copy of a stage updates.

Its optimizer gets parameters of their own, which look at parts of the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from weft.runtime.experts.apart import is_apart
from weft.runtime.weights.cuts import (
    WeightCut,
    by_rows,
    by_weights,
    check_cuttable,
    is_elementwise,
    is_rounded_by_place,
)
from weft.runtime.weights.options import Factories

Named: TypeAlias = Sequence[tuple[str, nn.Parameter]]
Made: TypeAlias = tuple[Optimizer | None, LRScheduler | None]


class Shard(NamedTuple):
    """What a copy updates of some weights.

    copy     which one it is, in the order of the pipes
    weights  all of them
    cuts     how each is cut
    owned    of each the part that is this copy's, which may be empty
    """

    copy: int
    weights: Sequence[nn.Parameter]
    cuts: Sequence[WeightCut]
    owned: Sequence[nn.Parameter]

    @classmethod
    def of(cls, weights: Sequence[nn.Parameter], cuts: Sequence[WeightCut], copy: int) -> Shard:
        parts = [cut.part(weight.data, copy) for weight, cut in zip(weights, cuts, strict=True)]
        owned = [
            nn.Parameter(part, requires_grad=weight.requires_grad)
            for weight, part in zip(weights, parts, strict=True)
        ]
        return cls(copy, weights, cuts, owned)

    def only(self, weights: Sequence[nn.Parameter]) -> Shard:
        """The same of some of these weights."""
        wanted = {id(weight) for weight in weights}
        kept = [place for place, weight in enumerate(self.weights) if id(weight) in wanted]
        return Shard(
            self.copy,
            [self.weights[place] for place in kept],
            [self.cuts[place] for place in kept],
            [self.owned[place] for place in kept],
        )

    def named(self, named: Named) -> Named:
        """What the optimizer is made for: the parts that are not empty."""
        pairs = zip(named, self.owned, strict=True)
        return [(name, part) for (name, _), part in pairs if part.numel()]

    def look(self) -> None:
        """Let the parts be those of the weights as they are now, wherever these lie."""
        for weight, cut, part in zip(self.weights, self.cuts, self.owned, strict=True):
            part.data = cut.part(weight.data, self.copy)
            part.requires_grad_(weight.requires_grad)

    def parts_of(self, tensors: Sequence[Tensor | None], copy: int) -> list[Tensor | None]:
        """The parts of a copy, of gradients of these weights or of the weights themselves."""
        pairs = zip(self.cuts, tensors, strict=True)
        return [None if one is None else cut.part(one, copy) for cut, one in pairs]

    @torch.no_grad()
    def write(self, copy: int, flat: Tensor) -> None:
        """Take what a copy has made of its parts, one after the other."""
        targets = [
            cut.part(weight.data, copy) for weight, cut in zip(self.weights, self.cuts, strict=True)
        ]
        values = torch.split(flat, [target.numel() for target in targets])
        for target, value in zip(targets, values, strict=True):
            target.copy_(value.view(target.shape))

    def size(self, copy: int) -> int:
        """How many elements the parts of a copy have."""
        parts = self.parts_of(self.weights, copy)
        return sum(part.numel() for part in parts if part is not None)


def sharded(
    stage: int, named: Named, factories: Factories, copy: int, copies: int
) -> tuple[Shard, Made]:
    """The shard of a copy, and its optimizer: of parts, or of whole weights where that is needed.

    What the optimizer is, is known once it is made.
    """
    weights = [weight for _, weight in named]
    check_cuttable(stage, weights)
    shard = Shard.of(weights, _but_apart(weights, by_rows(weights, copies), copy), copy)
    made = factories.both(shard.named(named))
    known, _ = made if made[0] is not None else factories.both(named)
    is_alike = known is None or is_elementwise(known)
    if known is None or (is_alike and not any(map(is_rounded_by_place, weights))):
        return shard, made
    shard = Shard.of(weights, _but_apart(weights, by_weights(weights, copies), copy), copy)
    return shard, factories.both(shard.named(named))


def _but_apart(
    weights: Sequence[nn.Parameter], cuts: Sequence[WeightCut], copy: int
) -> list[WeightCut]:
    """These cuts, but for weights that expert ranks hold apart: all of one is this copy's."""
    pairs = zip(weights, cuts, strict=True)
    return [cut.only(copy) if is_apart(weight) else cut for weight, cut in pairs]

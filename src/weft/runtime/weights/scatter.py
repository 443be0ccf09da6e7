"""Scattered sums: each copy of a stage gets the sum of those gradients that it updates.

copy 0 has   a0 a1 a2        gets   a0 + b0 + c0
copy 1 has   b0 b1 b2        gets   a1 + b1 + c1      in the order of the copies, so that the
copy 2 has   c0 c1 c2        gets   a2 + b2 + c2      bits are those of the whole sum
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from weft.runtime.transport import Transport
from weft.runtime.transport.message import Values
from weft.runtime.weights.exchange import Exchange, Grads, Holder, Member, closed, hand_out
from weft.runtime.weights.groups import ParameterGroup
from weft.runtime.weights.shards import Shard


class OwnGrads:
    """The end of a tied weight whose gradients are summed over copies first, each its share."""

    def __init__(self, group: ParameterGroup) -> None:
        assert group.shard is not None
        self._group, self.weights = group, group.shard.owned

    def closed(self, update: int) -> Grads:
        return self._group.closed(update)

    def is_due(self, update: int, *, is_tied: bool) -> bool:
        return self._group.is_due(update, is_tied=is_tied)

    def sum_up(self, update: int, grads: Grads) -> None:
        self._group.sum_up(update, grads)


class Scatter(Exchange):
    """An exchange of which each copy gets its share; `shards` are those of a copy's holders."""

    def __init__(
        self,
        number: int,
        members: Sequence[Member],
        transport: Transport,
        ahead: int,
        shards: Sequence[Shard],
    ) -> None:
        super().__init__(number, members, transport, ahead)
        self._shards, self._copies = shards, range(len(members))
        sizes = [sum(shard.size(copy) for shard in shards) for copy in self._copies]
        self._places = [*pairwise(accumulate(sizes, initial=0))]  # in what is sent

    def _flat(self, holders: Sequence[Holder], update: int) -> Values:
        """The gradients, copy by copy as they are cut."""
        grads, flags = closed(holders, update)
        parts = [part.flatten() for copy in self._copies for part in self._parts_of(grads, copy)]
        return torch.cat(parts).detach(), flags

    def _for(self, copies: Sequence[int], values: Values) -> Values:
        """What these copies have to sum."""
        flat, flags = values
        places = [self._places[copy] for copy in copies]
        pieces = [flat[start:stop] for start, stop in places]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces), flags

    def _share_out(self, update: int, total: Tensor, is_there: Sequence[bool]) -> None:
        sizes = [stop - start for start, stop in (self._places[copy] for copy in self._here)]
        totals = torch.split(total, sizes)
        weights = [weight for shard in self._shards for weight in shard.weights]
        for (copy, holders), mine in zip(self._here.items(), totals, strict=True):
            hand_out(holders, self._parts_of(weights, copy), update, mine, is_there)

    def _parts_of(self, tensors: Sequence[Tensor], copy: int) -> list[Tensor]:
        """The parts of a copy, of gradients or of weights of all holders."""
        cuts = [cut for shard in self._shards for cut in shard.cuts]
        return [cut.part(one, copy) for cut, one in zip(cuts, tensors, strict=True)]

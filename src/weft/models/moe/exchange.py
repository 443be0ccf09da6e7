"""Dispatch and combine: rows to the ranks of their experts, and back to their tokens.

    tokens      a b c            first choices: experts 0 1 0, second choices: 2 2 1
    sorted      a c b c a b      by expert: 0 0 1 1 2 2; of an expert, by choice
    exchanged   rows of all ranks for the experts of this one, by expert

Nothing is added up in an order that a device chooses: each token finds its rows by their places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from weft.models.moe.values import Computed, Dispatched, Routed, Sizes
from weft.runtime.experts import ExpertGroup


class Dispatch(nn.Module):
    """Sends each token to the ranks of its experts."""

    keeps_inputs = True

    def __init__(self, experts: int, group: ExpertGroup) -> None:
        super().__init__()
        self._experts, self._group = experts, group

    def forward(self, routed: Routed) -> Dispatched:
        chosen = routed.chosen.t().flatten()
        order = chosen.argsort(stable=True)
        place = order.argsort()
        sent, received = self._sizes(routed, chosen[order])
        rows = _taken(routed.tokens, order % len(routed.tokens), place)
        rows = self._group.exchange(rows, *map(_by_rank, (sent, received)))
        return Dispatched(
            value=routed.value,
            tokens=routed.tokens,
            weights=routed.weights,
            rows=turned(rows, received),
            order=order,
            place=place,
            sent=sent,
            received=received,
        )

    def _sizes(self, routed: Routed, ordered: Tensor) -> tuple[Sizes, Sizes]:
        """How many rows go to each expert of each rank, and come from each rank for ours."""
        ranks, rank = self._group.size, self._group.rank
        own = self._experts // ranks
        if isinstance(ordered, FakeTensor):  # an outline: no data, and nothing to exchange
            return _all_here(len(ordered), ranks, rank, own)
        if routed.counts is not None:
            firsts = range(0, self._experts, own)
            sent = tuple(routed.counts[first : first + own] for first in firsts)
            return sent, (sent[rank],) * ranks  # others deal alike
        edges = torch.arange(self._experts + 1, device=ordered.device)
        counts = torch.searchsorted(ordered, edges).diff().view(ranks, -1)
        return _rows(counts), _rows(self._group.counts(counts))


class Combine(nn.Module):
    """Brings what experts computed back, and adds it to each token's value, by weight."""

    keeps_inputs = True

    def __init__(self, group: ExpertGroup) -> None:
        super().__init__()
        self._group = group

    def forward(self, computed: Computed) -> Tensor:
        by_expert = tuple(zip(*computed.received, strict=True))
        rows = turned(computed.rows, by_expert)
        rows = self._group.exchange(rows, *map(_by_rank, (computed.received, computed.sent)))
        rows = _taken(rows, computed.place, computed.order)
        weights = computed.weights.to(rows.dtype).t().unsqueeze(-1)
        added = (rows.view(*weights.shape[:2], rows.shape[1]) * weights).sum(0)
        return computed.value + added.view_as(computed.value)


def turned(rows: Tensor, sizes: Sizes) -> Tensor:
    """Rows that lie by (first, second) of these sizes, by (second, first)."""
    firsts, seconds = len(sizes), len(sizes[0])
    if firsts == 1 or seconds == 1:
        return rows
    pieces = rows.split_with_sizes([size for row in sizes for size in row])
    return torch.cat([piece for second in range(seconds) for piece in pieces[second::seconds]])


def _taken(rows: Tensor, index: Tensor, place: Tensor) -> Tensor:
    found: Tensor = _Taken.apply(rows, index, place)  # type: ignore[no-untyped-call]
    return found


class _Taken(torch.autograd.Function):
    """Rows by their numbers, each of them equally often; gradients are added in a fixed order.

    place  where the first, second, ... use of each row is
    """

    @staticmethod
    def forward(context: Any, rows: Tensor, index: Tensor, place: Tensor) -> Tensor:
        context.save_for_backward(place)
        context.rows, context.uses = len(rows), len(index) // max(1, len(rows))
        return rows[index]

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (place,) = context.saved_tensors
        found = gradients[0][place]
        if context.uses != 1:
            found = found.view(context.uses, context.rows, *found.shape[1:]).sum(0)
        return found, None, None


def _by_rank(sizes: Sizes) -> list[int]:
    return [sum(row) for row in sizes]


def _rows(counts: Tensor) -> Sizes:
    found: Sequence[Sequence[int]] = counts.tolist()
    return tuple(map(tuple, found))


def _all_here(rows: int, ranks: int, rank: int, own: int) -> tuple[Sizes, Sizes]:
    """As if all rows were for the first of this rank's experts, and no others came."""
    sizes = [[0] * own for _ in range(ranks)]
    sizes[rank][0] = rows
    found = tuple(map(tuple, sizes))
    return found, found

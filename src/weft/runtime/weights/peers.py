"""Peers: ranks that hold shards of the same stages, and settle together what becomes of an update.

Each of them runs a pipeline of its own, by the same program. They meet in the update, on the main
thread, where all of them come by in the same order: the norms of shards make those of weights, and
what is wrong in one pipeline is wrong in all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from weft.runtime.device.shards import all_groups, groups_over

Groups: TypeAlias = tuple[dist.ProcessGroup, ...]


class Peers:
    """The ranks among which the weights of a model are distributed; nobody for plain ones.

    `weights` are all of the model, in its order, also those of stages that are elsewhere: whoever
    holds one shares it with as many.
    """

    def __init__(self, weights: Sequence[Tensor], device: torch.device) -> None:
        self._device = device
        self._cut: dict[Groups, list[int]] = {}  # places of weights, by the groups over their cuts
        for place, weight in enumerate(weights):
            if groups := groups_over(weight):
                self._cut.setdefault(groups, []).append(place)
        self._all: Groups = all_groups(weights)

    def norms(self, found: Mapping[int, float], dtype: torch.dtype) -> dict[int, float]:
        """The norms of whole gradients, by the place of their weights, from those of the shards."""
        whole = dict(found)
        for groups, places in self._cut.items():
            known = [place for place in places if place in found]
            if known:
                shards = torch.tensor([found[place] for place in known], dtype=dtype, device="cpu")
                squares = self._summed(shards.square(), groups)
                whole.update(zip(known, squares.sqrt().tolist(), strict=True))
        return whole

    def any(self, *, is_so: bool) -> bool:
        """Whether something is so in any of their pipelines."""
        if not self._all:
            return is_so
        return bool(self._summed(torch.tensor([float(is_so)], device="cpu"), self._all))

    def _summed(self, value: Tensor, groups: Iterable[dist.ProcessGroup]) -> Tensor:
        value = value.to(self._device)
        for group in groups:
            dist.all_reduce(value, group=group)
        return value.cpu()

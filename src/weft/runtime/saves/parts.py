"""What an optimizer is made for: weights, shards of them, or the parts that one copy updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor, nn

from weft.errors import InputError
from weft.runtime.device.shards import is_sharded
from weft.runtime.saves.regions import Held, Region, Sizes, region_of
from weft.runtime.weights.shards import Shard

WeightState: TypeAlias = dict[Any, Any]  # what an optimizer keeps for a weight
NamesOf: TypeAlias = Mapping[nn.Parameter, Sequence[str]]


class OptimizedParts(NamedTuple):
    """What an optimizer is made for.

    names    of each weight, or of the weight that it is a part of
    regions  which part of the weight it is
    """

    names: NamesOf
    regions: Mapping[nn.Parameter, Region]

    @classmethod
    def of(cls, names_of: NamesOf, shard: Shard | None = None) -> OptimizedParts:
        """Weights as they are, or the parts of them that a shard has."""
        if shard is None:
            return cls(names_of, {weight: region_of(weight) for weight in names_of})
        names, regions = {}, {}
        for weight, cut, owned in zip(shard.weights, shard.cuts, shard.owned, strict=True):
            start, stop = cut.bounds[shard.copy : shard.copy + 2]
            names[owned], found = names_of[weight], region_of(weight)
            is_part = weight.dim() > 0 and stop - start < cut.bounds[-1]
            regions[owned] = found.narrowed(cut.dimension, start, stop) if is_part else found
        return cls(names, regions)

    def held(self, weight: nn.Parameter, key: str, value: Tensor) -> Held:
        """What of a tensor is here that an optimizer keeps for a weight."""
        region = self.regions[weight]
        is_part = is_sharded(weight) or not region.is_whole
        if is_part and not (_is_distributed_as(value, weight, region) or value.numel() == 1):
            raise InputError(
                f"{key} is kept for a weight of which each rank has a part, and is neither"
                f" distributed as that is nor a single number, so that it is not known which"
                f" part of it is here; use another optimizer, or torch.distributed.checkpoint"
            )
        if is_sharded(value):
            return Held.of(value)
        if tuple(value.shape) == region.shape:
            return Held(value, region)
        has_rows = _has_rows(value.shape, weight, region.shape)
        return Held(value, region.rows_of(value.shape[1:])) if has_rows else Held.of(value)

    def wanted(self, weight: nn.Parameter, shape: Sizes) -> Region | None:
        """The part of a tensor of a save, of this shape, that goes with what is here of a weight.

        None for all of it.
        """
        region = self.regions[weight]
        if region.is_whole:
            return None
        if shape == region.whole:
            return region
        has_rows = _has_rows(shape, weight, region.whole)
        return region.rows_of(shape[1:]) if has_rows else None


def _is_distributed_as(value: Tensor, weight: Tensor, region: Region) -> bool:
    if is_sharded(weight):
        return is_sharded(value) and value.shape == weight.shape
    return tuple(value.shape) == region.shape or _has_rows(value.shape, weight, region.shape)


def _has_rows(shape: Sequence[int], weight: Tensor, known: Sizes) -> bool:
    """Whether a tensor has the rows of a weight of known shape, as factors of its state have."""
    return not is_sharded(weight) and len(shape) == len(known) > 0 and shape[0] == known[0]

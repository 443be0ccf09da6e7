"""Parts of weights in a save: copies of a stage that share an update keep the state of their parts.

save    a part says where in its weight it is
load    parts are put together, and cut as they are here
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from weft.errors import SaveError
from weft.runtime.weights.shards import Shard

WeightState: TypeAlias = dict[Any, Any]  # what an optimizer keeps for a weight
NamesOf: TypeAlias = Mapping[nn.Parameter, Sequence[str]]


class WeightPart(NamedTuple):
    """What is between two bounds along a dimension of a weight."""

    dimension: int
    start: int
    stop: int

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """That of the part of a weight with this shape."""
        sizes = [*whole]
        sizes[self.dimension] = self.stop - self.start
        return tuple(sizes)


class OptimizedParts(NamedTuple):
    """What an optimizer is made for.

    names  of each weight, or of the weight that it is a part of
    parts  where that is not all of it
    sizes  the shapes of the weights
    """

    names: NamesOf
    parts: Mapping[nn.Parameter, WeightPart]
    sizes: Mapping[nn.Parameter, tuple[int, ...]]

    @classmethod
    def of(cls, names_of: NamesOf, shard: Shard | None = None) -> OptimizedParts:
        """Weights as they are, or the parts of them that a shard has."""
        if shard is None:
            return cls(names_of, {}, {weight: tuple(weight.shape) for weight in names_of})
        names, parts, sizes = {}, {}, {}
        for weight, cut, owned in zip(shard.weights, shard.cuts, shard.owned, strict=True):
            names[owned], sizes[owned] = names_of[weight], tuple(weight.shape)
            start, stop = cut.bounds[shard.copy : shard.copy + 2]
            if stop - start < cut.bounds[-1]:
                parts[owned] = WeightPart(cut.dimension, start, stop)
        return cls(names, parts, sizes)


def joined(
    name: str, found: Sequence[tuple[WeightPart | None, WeightState]], shape: tuple[int, ...]
) -> WeightState:
    """The state of a whole weight, from that of its parts."""
    part, state = found[0]
    if part is None:
        return state
    ordered = sorted(((p, each) for p, each in found if p is not None), key=lambda pair: pair[0])
    stops = [0, *(one.stop for one, _ in ordered)]
    if [one.start for one, _ in ordered] != stops[:-1] or stops[-1] != shape[part.dimension]:
        raise SaveError(f"the save lacks a part of the optimizer state of {name}; use another save")
    return {
        key: torch.cat([each[key] for _, each in ordered], part.dimension)
        if _has_shape(value, part.shape(shape))
        else value
        for key, value in state.items()
    }


def cut(state: WeightState, part: WeightPart | None, shape: tuple[int, ...]) -> WeightState:
    """The state of a part of a weight, from that of the whole."""
    if part is None:
        return state
    size = part.stop - part.start
    return {
        key: value.narrow(part.dimension, part.start, size).clone()
        if _has_shape(value, shape)
        else value
        for key, value in state.items()
    }


def _has_shape(value: object, shape: tuple[int, ...]) -> bool:
    return isinstance(value, Tensor) and tuple(value.shape) == shape

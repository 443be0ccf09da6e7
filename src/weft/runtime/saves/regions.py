"""Regions: which part of a whole tensor a process has, and a save has in one place.

    weight 16 x 8, Shard(0) over two ranks    rank 1 has what begins at (8, 0), of shape 8 x 8
    its state, where two copies share updates copy 0 has what begins at (0, 0), of shape 8 x 8

A plain tensor is all of it. Knows no files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from torch import Tensor

from weft.errors import InputError
from weft.runtime.device.shards import is_sharded, local
from weft.runtime.experts.apart import apart_of

Sizes: TypeAlias = tuple[int, ...]
Wanted: TypeAlias = "tuple[str, Region | None]"  # a tensor of a save, or a region of it
ReadTensor: TypeAlias = Callable[[Wanted], Tensor]


class Region(NamedTuple):
    """A block of a tensor: where it begins, its shape, and the shape of the tensor."""

    start: Sizes
    shape: Sizes
    whole: Sizes

    @classmethod
    def all(cls, shape: Sequence[int]) -> Region:
        """All of a tensor."""
        return cls((0,) * len(shape), tuple(shape), tuple(shape))

    @property
    def is_whole(self) -> bool:
        return self.shape == self.whole

    def narrowed(self, dimension: int, start: int, stop: int) -> Region:
        """What is between two bounds along a dimension of it."""
        begin, shape = [*self.start], [*self.shape]
        begin[dimension] += start
        shape[dimension] = stop - start
        return Region(tuple(begin), tuple(shape), self.whole)

    def rows_of(self, others: Sequence[int]) -> Region:
        """The same rows, along the first dimension, of a tensor that has these others."""
        start, count = self.start[0], self.shape[0]
        return Region.all((self.whole[0], *others)).narrowed(0, start, start + count)

    def common(self, start: Sizes, shape: Sizes) -> tuple[Sizes, Sizes]:
        """Where it and another block begin to overlap, and how far they do."""
        pairs = zip(self.start, self.shape, start, shape, strict=True)
        bounds = [
            (max(mine, theirs), min(mine + size, theirs + other))
            for mine, size, theirs, other in pairs
        ]
        first = tuple(begin for begin, _ in bounds)
        return first, tuple(max(0, end - begin) for begin, end in bounds)


class Held(NamedTuple):
    """What a process has of a tensor.

    is_alike  whether all processes that have this region have the same values, so that any of
              them may write it
    """

    tensor: Tensor
    region: Region
    is_alike: bool = True

    @classmethod
    def of(cls, tensor: Tensor, *, is_alike: bool = True) -> Held:
        return cls(local(tensor), region_of(tensor), is_alike)


def region_of(tensor: Tensor) -> Region:
    """Which part of a tensor, as the unsplit model has it, is in this process."""
    if is_sharded(tensor):
        return _of_shard(tensor)
    part, parts = apart_of(tensor)
    if parts == 1:
        return Region.all(tensor.shape)
    rows, *others = tensor.shape
    return Region((part * rows, *(0 for _ in others)), (rows, *others), (parts * rows, *others))


def _of_shard(tensor: Tensor) -> Region:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, start = compute_local_shape_and_global_offset(
        tensor.shape,
        tensor.device_mesh,  # type: ignore[attr-defined]
        tensor.placements,  # type: ignore[attr-defined]
    )
    if tuple(local(tensor).shape) != tuple(shape):
        raise InputError(
            f"a DTensor of shape {[*tensor.shape]} has a shard of shape {[*local(tensor).shape]}"
            f" here, where its placements say {[*shape]}; save it with torch.distributed.checkpoint"
        )
    return Region(tuple(start), tuple(shape), tuple(tensor.shape))

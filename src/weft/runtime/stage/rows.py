"""Rows: the values of microbatches joined along the first dimension, and cut again."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weft.errors import InputError
from weft.runtime.stage.values import Value


def joined(values: Sequence[Value], reader: str) -> Value:
    """One value of those of all microbatches, joined along the first dimension."""
    if len({value.structure for value in values}) > 1:
        raise InputError(
            f"{reader} takes the whole batch at once, and its microbatches differ in more than"
            f" their tensors; hand it values that are made up alike"
        )
    leaves = [*zip(*(value.leaves for value in values), strict=True)]
    if any(not leaf.dim() for each in leaves for leaf in each):
        raise InputError(
            f"{reader} takes the whole batch at once, and a tensor that it reads has no dimension"
            f" to join microbatches along; let it have one row for each sample"
        )
    return values[0].with_leaves(torch.cat(each) for each in leaves)


def cut(value: Value, rows: Sequence[int], stage: int) -> list[Value]:
    """The value of each microbatch, of those of the whole batch."""
    for leaf in value.leaves:
        if not leaf.dim() or len(leaf) != sum(rows):
            raise InputError(
                f"stage {stage} takes the whole batch of {sum(rows)} samples at once, and returns a"
                f" tensor of shape {list(leaf.shape)}, which is not one row for each of them"
            )
    pieces = [torch.split(leaf, [*rows]) for leaf in value.leaves]
    return [value.with_leaves(piece[index] for piece in pieces) for index in range(len(rows))]

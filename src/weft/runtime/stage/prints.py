"""Prints: by which to see that a forward, run again, computes what it computed before."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weft.errors import WeftError
from weft.runtime.stage.values import Value, fingerprint


def prints_of(value: Value) -> list[float]:
    """A fingerprint of each tensor of a value."""
    with torch.no_grad():
        return [fingerprint(leaf) for leaf in value.leaves]


def refuse_difference(
    stage: int, microbatch: int, before: Sequence[float], after: Sequence[float]
) -> None:
    """Refuse a recomputation that differs from its forward."""
    if not _are_same(before, after):
        raise WeftError(
            f"stage {stage} computes something else when microbatch {microbatch} is"
            f" recomputed: it keeps state that is no buffer, or draws from a generator that is"
            f" neither torch's nor an attribute of a module. Register that state, or do not"
            f" recompute this stage"
        )


def _are_same(one: Sequence[float], other: Sequence[float]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a == b or (a != a and b != b) for a, b in pairs)

"""What passes between the parts of an expert layer.

    attention ── Routed ── dispatch ── Dispatched ── experts ── Computed ── combine

Counts are plain numbers: whoever exchanges or multiplies rows has to know them on the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

Sizes: TypeAlias = tuple[tuple[int, ...], ...]  # rows by rank, and by expert of a rank


@dataclass(frozen=True, slots=True)
class Routed:
    """Tokens, and where they go.

    value    what the layer returns if no expert adds anything, batch x context x hidden
    tokens   what experts get, tokens x hidden
    weights  of each of a token's experts, tokens x top
    chosen   these experts, tokens x top
    counts   how many rows go to each expert, where that is known without looking
    """

    value: Tensor
    tokens: Tensor
    weights: Tensor
    chosen: Tensor
    counts: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Dispatched:
    """Rows of all ranks for the experts of this one.

    rows      by expert, and for each of them by rank
    order     which of this rank's choices (first choices of all tokens, then second ones, ...) was
              sent first, second, ...
    place     where each of them was in that order
    sent      how many rows went to each rank's experts
    received  how many rows came from each rank, for each expert of this one
    """

    value: Tensor
    tokens: Tensor
    weights: Tensor
    rows: Tensor
    order: Tensor
    place: Tensor
    sent: Sizes
    received: Sizes


@dataclass(frozen=True, slots=True)
class Computed:
    """What the experts of this rank make of their rows; `value` has the shared expert's share."""

    value: Tensor
    weights: Tensor
    rows: Tensor
    order: Tensor
    place: Tensor
    sent: Sizes
    received: Sizes

"""Frames: fixed memory for one microbatch in flight, and what is replayed there.

    F0 B0      frame 0        F2 B2      frame 0 again
      F1    B1   frame 1

Between a forward and its backward others run in any order, so no two frames share memory. A frame
is taken again once its backward has run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.runtime.device.accelerator import onto
from weft.runtime.stage.accumulators import Accumulator
from weft.runtime.stage.captures import Replay
from weft.runtime.stage.seeds import Call, mixed, word_of

Given: TypeAlias = Sequence[Tensor | None]
Stretches: TypeAlias = Sequence[tuple[Call, Call | None]]  # of a forward, which draw


class Captured(NamedTuple):
    """What is replayed: it reads what was given, and leaves what it found in the same memory."""

    replay: Replay
    given: Given
    found: Any
    accumulators: Sequence[Accumulator]  # that it adds to


@dataclass(slots=True, eq=False)
class Frame:
    """The memory of one microbatch in flight: its forward and the parts of its backward."""

    signature: Signature
    way: object  # in which its stage computes
    pool: object
    generators: Sequence[torch.Generator]  # one for each stretch that draws
    kept: Sequence[Tensor]  # of the stage, which graphs read wherever they are
    captured: dict[str, Captured] = field(default_factory=dict)
    is_complete: bool = False  # whether all that a microbatch needs is captured

    def seed(self, base: int) -> None:
        """Let the next forward draw as the microbatch with this base does."""
        for (call, after), generator in zip(self.signature.stretches, self.generators, strict=True):
            generator.manual_seed(mixed(base, word_of(call, after)))


@dataclass(slots=True, eq=False)
class Signature:
    """What the forwards that share captures have in common; it was first met in step `since`."""

    since: int
    is_dense: bool
    runs: int = 0  # without a graph
    stretches: Stretches = ()
    free: list[Frame] = field(default_factory=list)


def is_dense(tensors: Sequence[Tensor]) -> bool:
    """Whether copies of these are laid out as they are."""
    return all(
        one.layout is torch.strided
        and torch.empty_like(one, device="meta").stride() == one.stride()
        for one in tensors
    )


def described(tensors: Sequence[Tensor]) -> tuple[object, ...]:
    """By which to see that tensors fit into fixed memory."""
    return tuple((one.shape, one.stride(), one.dtype) for one in tensors)


def fixed(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    """Memory for what comes in, with what has come first."""
    if tensor is None:
        return None
    made = torch.empty_like(tensor, device=device, requires_grad=False)
    return made.copy_(onto(tensor.detach(), device))


def fill(given: Given, values: Given, where: str) -> None:
    """Copy what has come into fixed memory."""
    for mine, value in zip(given, values, strict=True):
        if (mine is None) != (value is None):
            raise WeftError(
                f"{where}: a gradient is there that was not when its CUDA graph was captured, or is"
                f" not there any more; leave graphs off"
            )
        if mine is not None and value is not None:
            mine.copy_(onto(value, mine.device))


def copies(tensors: Given) -> tuple[Tensor | None, ...]:
    """What leaves a frame for good: who reads it may do so after the frame is used again."""
    return tuple([None if one is None else one.clone() for one in tensors])

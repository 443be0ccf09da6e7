"""Rounding: what crosses devices, as it arrives where it was compressed on the way.

Says with numbers of the host what ranks compute on their devices: a tensor is divided by a power of
two so that its largest finite magnitude is in [1, 2), multiplied by the top of a type's range,
rounded to that type, and taken back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.ir.program import Program
from weft.runtime.compression import ByEdge, Format
from weft.runtime.stage.values import Value

SCALE_BYTES = 8
TOP = {torch.float16: 2.0**15, torch.float8_e4m3fn: 2.0**7, torch.float8_e5m2: 2.0**15}
FORWARD = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn}
BACKWARD = {**FORWARD, "fp8": torch.float8_e5m2}


class Crossing(NamedTuple):
    """What a value and its gradient are rounded to between two stages."""

    forward: torch.dtype | None = None
    backward: torch.dtype | None = None

    def value(self, value: Value) -> Value:
        """A value, whose gradient is rounded as well where it is part of a graph."""
        if self == PLAIN:
            return value
        return value.with_leaves(_Rounded.apply(leaf, *self) for leaf in value.leaves)  # type: ignore[no-untyped-call]

    def gradients(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        return [None if one is None else rounded(one, self.backward) for one in gradients]


PLAIN = Crossing()


class Crossings:
    """Which values cross devices, by edge and microbatch of a step; none without a program."""

    def __init__(self, by_edge: ByEdge | None = None, program: Program | None = None) -> None:
        self._by_edge, self._program = by_edge or {}, program

    def of(self, edge: tuple[int, int], microbatch: int) -> Crossing:
        """What happens to a microbatch on its way along an edge."""
        asked, program = self._by_edge.get(edge), self._program
        if asked is None or program is None:
            return PLAIN
        devices = program.placement.pipes[program.pipe_of[microbatch]]
        if devices[edge[0]] == devices[edge[1]]:
            return PLAIN
        return Crossing(_in(FORWARD, asked.activations), _in(BACKWARD, asked.gradients))


def _in(table: dict[str, torch.dtype], asked: Format | None) -> torch.dtype | None:
    return None if asked is None else table[asked]


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, value: Tensor, forward: torch.dtype | None, backward: torch.dtype | None
    ) -> Tensor:
        context.backward_type = backward
        found = rounded(value, forward)
        return value.clone() if found is value else found

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return rounded(gradient, context.backward_type), None, None


def rounded(value: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A tensor as it arrives; itself where it would not have become smaller."""
    if dtype is None or not value.is_floating_point():
        return value
    if value.numel() * dtype.itemsize + SCALE_BYTES >= value.numel() * value.dtype.itemsize:
        return value
    if dtype is torch.bfloat16:
        return value.to(dtype).to(value.dtype)
    is_finite = value.isfinite()
    known = value[is_finite].abs()
    most = known.max().item() if known.numel() else 0.0
    unit = 2.0 ** (math.frexp(most)[1] - 1) if most else 1.0
    limit = 2 - torch.finfo(dtype).eps
    scaled = (value.double() / unit).clamp(-limit, limit) * TOP[dtype]
    arrived = scaled.float().to(dtype).double() / TOP[dtype] * unit
    other = value if dtype is torch.float16 else torch.full_like(value, math.nan)
    return torch.where(is_finite, arrived.to(value.dtype), other)

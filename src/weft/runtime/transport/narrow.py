"""Narrow: a tensor in fewer bits, with a power of two that lets it use their whole range.

    bfloat16        cast: it has the range of float32
    float16, fp8    [ unit | elements ]    bytes: a power of two, then value / unit * top, rounded

`unit` is the largest power of two that is not above the largest finite magnitude, so that quotients
are below 2; `top` takes those to the top of the type's range. So no finite value can overflow, on
either end, and nothing is tried twice; what is not finite stays so. All of it is computed where the
tensor is: no host waits.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weft.runtime.compression import SCALE_BYTES
from weft.runtime.transport.message import TensorShape


def narrowed(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor as it travels in such a type."""
    if dtype is torch.bfloat16:
        return value.to(dtype)
    wide = value.to(_computed_in(value.dtype))
    finite = wide.nan_to_num(0.0, 0.0, 0.0)
    unit, limit = _unit(finite), 2 - torch.finfo(dtype).eps  # which rounding does not take to 2
    scaled = (finite / unit).clamp_(-limit, limit).mul_(_top(dtype))
    other = finite.sub_(wide)  # 0, and minus what is not finite
    scaled -= other if dtype is torch.float16 else other.mul_(0.0)  # fp8: NaN, which all casts keep
    parts = unit.double().reshape(1), scaled.float().to(dtype).reshape(-1)
    return torch.cat([part.view(torch.uint8) for part in parts])


def widened(content: Tensor, was: TensorShape, dtype: torch.dtype) -> Tensor:
    """The tensor that was narrowed, rounded."""
    if dtype is torch.bfloat16:
        return content.to(was.dtype)
    unit, elements = content[:SCALE_BYTES], content[SCALE_BYTES:]
    wide = elements.view(dtype).to(_computed_in(was.dtype))
    wide.mul_(1 / _top(dtype)).mul_(unit.view(torch.float64).to(wide.dtype))
    return wide.view(was.shape).to(was.dtype)


def narrow_shape(shape: TensorShape, dtype: torch.dtype) -> TensorShape:
    """What `narrowed` makes of a tensor of that shape."""
    if dtype is torch.bfloat16:
        return TensorShape(shape.shape, dtype)
    return TensorShape((SCALE_BYTES + math.prod(shape.shape) * dtype.itemsize,), torch.uint8)


def _unit(finite: Tensor) -> Tensor:
    """The largest power of two that is not above the largest magnitude; 1 where all are zero.

    A quotient of floating point, which every device rounds correctly, and this one is exact.
    """
    most = finite.abs().amax()
    return torch.where(most > 0, most / (2 * torch.frexp(most).mantissa), 1.0)


def _top(dtype: torch.dtype) -> float:
    """The largest power of two of which all multiples below 2 can be had."""
    info = torch.finfo(dtype)
    return 2.0 ** math.floor(math.log2(info.max / (2 - info.eps)))


def _computed_in(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype is torch.float64 else torch.float32

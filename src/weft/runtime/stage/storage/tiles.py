"""Tiles: a tensor in FP8, each 128 elements of a row with a scale of their own.

    row      x x x ... x | x x x ... x |  x x          what is left of a row is a tile, too
    codes    E4M3        | E4M3        |  E4M3         value / scale, rounded
    scales   2^a         | 2^b         |  2^c          of float32

A scale is a power of two, so that dividing by it is exact, and takes the largest magnitude of its
tile to the top of the range. What is not finite becomes NaN. All of it is computed where the
tensor is: no host waits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from weft.runtime.stage.storage.marks import LEAST_UNIT, TILE, TOP

E4M3 = torch.float8_e4m3fn
LIMIT = (2 - torch.finfo(E4M3).eps) * TOP  # which rounding does not take beyond the range


class Tiles:
    """A tensor that is stored in FP8."""

    __slots__ = ("__weakref__", "_dtype", "_size", "_stride", "is_held", "tensors")

    def __init__(self, tensor: Tensor) -> None:
        self._size, self._dtype = tensor.shape, tensor.dtype
        self._stride = torch.empty_like(tensor, device="meta").stride()  # its own, if it is dense
        self.tensors: Sequence[Tensor] = _packed(tensor.detach())
        self.is_held = False

    def restored(self) -> Tensor:
        """The tensor, rounded, laid out in memory as it was."""
        codes, scales = self.tensors
        each = scales.repeat_interleave(TILE, -1)[:, : codes.shape[1]]
        rows = codes.view(E4M3).float() * each
        found = torch.empty_strided(
            self._size, self._stride, dtype=self._dtype, device=codes.device
        )
        return found.copy_(rows.reshape(self._size))


def _packed(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """The codes of each row, as bytes, and the scales of its tiles."""
    rows = tensor.reshape(-1, tensor.shape[-1]).float()
    length = rows.shape[1]
    padded = functional.pad(rows, (0, -length % TILE))
    tiles = padded.view(len(rows), -1, TILE)
    finite = tiles.nan_to_num(0.0, 0.0, 0.0)
    most = finite.abs().amax(-1)
    unit = torch.where(most > 0, most / (2 * torch.frexp(most).mantissa), 1.0)
    scales = unit.clamp_(min=LEAST_UNIT) / TOP
    scaled = (finite / scales.unsqueeze(-1)).clamp_(-LIMIT, LIMIT)
    scaled -= (finite - tiles) * 0.0  # NaN where it is not finite
    codes = scaled.flatten(-2)[:, :length].to(E4M3, memory_format=torch.contiguous_format)
    return codes.view(torch.uint8), scales

"""Tensors in files, as torch's distributed checkpoints have them: one after the other.

Each is what `torch.save` writes, and is read with `weights_only=True`, which runs no code.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch
from torch import Tensor

from weft.errors import SaveError

AT_ONCE = 1 << 28  # bytes between two waits for the disk, which others see growing


class Extent(NamedTuple):
    """Where a tensor lies, and what it is."""

    file: str
    offset: int
    length: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def type(self) -> torch.dtype:
        found = getattr(torch, self.dtype, None)
        if not isinstance(found, torch.dtype):
            raise SaveError(f"{self.file} has a tensor of type {self.dtype}, which torch has not")
        return found


def write(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Extent]:
    """Write tensors, and wait until they are on the disk."""
    found, synchronised = {}, 0
    with path.open("wb") as file:
        for key, tensor in tensors.items():
            begin = file.tell()
            if begin - synchronised > AT_ONCE:
                synchronised = begin
                _synchronise(file)
            torch.save(_alone(tensor), file)
            shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
            found[key] = Extent(path.name, begin, file.tell() - begin, dtype, shape)
        _synchronise(file)
    return found


def _synchronise(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def read(folder: Path, key: str, extent: Extent) -> Tensor:
    """A tensor, on the CPU; refuse anything else."""
    path = folder / extent.file
    try:
        with path.open("rb") as file:
            file.seek(extent.offset)
            content = file.read(extent.length)
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        raise SaveError(f"{key} cannot be read from {path}: {error}; use another save") from error
    if not isinstance(found, Tensor):
        raise SaveError(f"{key} in {path} is of type {type(found).__name__}, not a tensor")
    if tuple(found.shape) != extent.shape or found.dtype != extent.type:
        raise SaveError(f"{key} in {path} is not what the save says of it; use another save")
    return found


def _alone(tensor: Tensor) -> Tensor:
    """A tensor on the host that looks at its own memory alone, of which torch writes all."""
    found = tensor.detach().cpu().contiguous()
    is_all = found.untyped_storage().nbytes() == found.nbytes
    return found if is_all else found.clone()

"""Tensors in files, as torch's distributed checkpoints have them: chunks, one after the other.

Each is what `torch.save` writes, and is read with `weights_only=True`, which runs no code.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias

import torch
from torch import Tensor

from weft.errors import SaveError
from weft.runtime.saves.regions import Held, Region, Sizes

AT_ONCE = 1 << 28  # bytes between two waits for the disk, which others see growing

ChunkName: TypeAlias = tuple[str, Sizes]  # the key of a tensor, and where in it a chunk begins


class Chunk(NamedTuple):
    """Where a block of a tensor lies, where in the tensor it begins, and its shape."""

    file: str
    offset: int
    length: int
    start: Sizes
    shape: Sizes


class StoredTensor(NamedTuple):
    """What a tensor is, and the chunks that a save has of it."""

    dtype: str
    shape: Sizes
    chunks: list[Chunk]

    @property
    def type(self) -> torch.dtype:
        found = getattr(torch, self.dtype, None)
        if not isinstance(found, torch.dtype):
            raise SaveError(f"the save has a tensor of type {self.dtype}, which torch has not")
        return found

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.type.itemsize

    def has(self, region: Region) -> bool:
        """Whether the save has anything of a region."""
        return any(prod(region.common(chunk.start, chunk.shape)[1]) for chunk in self.chunks)


def write(path: Path, chunks: Mapping[ChunkName, Held]) -> dict[str, StoredTensor]:
    """Write chunks of tensors, and wait until they are on the disk."""
    found, synchronised = dict[str, StoredTensor](), 0
    with path.open("wb") as file:
        for (key, start), (tensor, region, _) in chunks.items():
            begin = file.tell()
            if begin - synchronised > AT_ONCE:
                synchronised = begin
                _synchronise(file)
            torch.save(_alone(tensor), file)
            dtype = str(tensor.dtype).removeprefix("torch.")
            known = found.setdefault(key, StoredTensor(dtype, region.whole, []))
            chunk = Chunk(path.name, begin, file.tell() - begin, start, region.shape)
            known.chunks.append(chunk)
        _synchronise(file)
    return found


def _synchronise(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def read(folder: Path, key: str, saved: StoredTensor, region: Region | None = None) -> Tensor:
    """A tensor, or a region of it, on the CPU; refuse anything else."""
    region = region or Region.all(saved.shape)
    for chunk in saved.chunks:
        if (chunk.start, chunk.shape) == (region.start, region.shape):
            return _read_chunk(folder, key, saved, chunk)
    made, count = torch.empty(region.shape, dtype=saved.type, device="cpu"), 0
    for chunk in saved.chunks:
        first, shape = region.common(chunk.start, chunk.shape)
        if prod(shape):
            found = _read_chunk(folder, key, saved, chunk)
            _block(made, region.start, first, shape).copy_(_block(found, chunk.start, first, shape))
            count += prod(shape)
    if count != made.numel():
        raise SaveError(f"{folder} lacks a part of {key}; use another save")
    return made


def _block(tensor: Tensor, start: Sizes, first: Sizes, shape: Sizes) -> Tensor:
    """A block of a whole tensor, in a part of it that begins somewhere."""
    for dimension, (own, begin, size) in enumerate(zip(start, first, shape, strict=True)):
        tensor = tensor.narrow(dimension, begin - own, size)
    return tensor


def _read_chunk(folder: Path, key: str, saved: StoredTensor, chunk: Chunk) -> Tensor:
    path = folder / chunk.file
    try:
        with path.open("rb") as file:
            file.seek(chunk.offset)
            content = file.read(chunk.length)
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        raise SaveError(f"{key} cannot be read from {path}: {error}; use another save") from error
    if not isinstance(found, Tensor):
        raise SaveError(f"{key} in {path} is of type {type(found).__name__}, not a tensor")
    if tuple(found.shape) != chunk.shape or found.dtype != saved.type:
        raise SaveError(f"{key} in {path} is not what the save says of it; use another save")
    return found


def _alone(tensor: Tensor) -> Tensor:
    """A tensor on the host that looks at its own memory alone, of which torch writes all."""
    found = tensor.detach().cpu().contiguous()
    is_all = found.untyped_storage().nbytes() == found.nbytes
    return found if is_all else found.clone()

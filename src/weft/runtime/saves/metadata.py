"""Torch's own index of a distributed checkpoint, so that torch's tools read what Weft saves.

It is a pickle, which Weft writes and never reads. A weight with several names is in it under each
of them, and in the files once. What it is made of is imported when a save is written: that takes a
while, and whoever saves nothing should not wait for it.
"""

from __future__ import annotations

import os
import pickle  # noqa: TID251 (torch's index is one; it is written here, and never read)
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from weft.runtime.saves.manifest import GRADIENTS, MODEL, OPTIMIZER, VERSIONS, SavePart
from weft.runtime.saves.tensors import StoredTensor

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

METADATA = ".metadata"


def write_metadata(folder: Path, part: SavePart) -> None:
    """Write the index beside the tensors."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

    tensors = {**part.tensors, **_under_other_names(part)}
    made = Metadata(
        {key: _described(tensor) for key, tensor in tensors.items()},
        planner_data={key: _path(key) for key in tensors},
        storage_data={
            MetadataIndex(key, one.start): _StorageInfo(one.file, one.offset, one.length)
            for key, tensor in tensors.items()
            for one in tensor.chunks
        },
    )
    with (folder / METADATA).open("wb") as file:
        pickle.dump(made, file)
        file.flush()
        os.fsync(file.fileno())


def _under_other_names(part: SavePart) -> dict[str, StoredTensor]:
    found = {f"{MODEL}.{other}": f"{MODEL}.{first}" for other, first in part.aliases.items()}
    return {other: part.tensors[first] for other, first in found.items() if first in part.tensors}


def _described(tensor: StoredTensor) -> TensorStorageMetadata:
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        TensorProperties,
        TensorStorageMetadata,
    )

    chunks = [
        ChunkStorageMetadata(torch.Size(one.start), torch.Size(one.shape)) for one in tensor.chunks
    ]
    properties = TensorProperties(tensor.type)
    return TensorStorageMetadata(properties, torch.Size(tensor.shape), chunks)


def _path(key: str) -> tuple[str, ...]:
    """Where a tensor is in the nested dict that torch makes of a checkpoint."""
    kind, _, rest = key.partition(".")
    if kind in (VERSIONS, GRADIENTS):  # of which version, of which pipe
        which, _, name = rest.partition(".")
        return kind, which, name
    if kind == OPTIMIZER:
        name, _, what = rest.rpartition(".")
        return kind, name, what
    return kind, rest

"""Torch's own index of a distributed checkpoint, so that torch's tools read what Weft saves.

It is a pickle, which Weft writes and never reads. A weight with several names is in it under each
of them, and in the files once.
"""

from __future__ import annotations

import os
import pickle  # noqa: TID251 (torch's index is one; it is written here, and never read)
from pathlib import Path

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from weft.runtime.saves.manifest import MODEL, OPTIMIZER, VERSIONS, SavePart
from weft.runtime.saves.tensors import Extent

METADATA = ".metadata"


def write_metadata(folder: Path, part: SavePart) -> None:
    """Write the index beside the tensors."""
    extents = {**part.tensors, **_under_other_names(part)}
    made = Metadata(
        {key: _described(extent) for key, extent in extents.items()},
        planner_data={key: _path(key) for key in extents},
        storage_data={
            MetadataIndex(key, [0] * len(one.shape)): _StorageInfo(one.file, one.offset, one.length)
            for key, one in extents.items()
        },
    )
    with (folder / METADATA).open("wb") as file:
        pickle.dump(made, file)
        file.flush()
        os.fsync(file.fileno())


def _under_other_names(part: SavePart) -> dict[str, Extent]:
    found = {f"{MODEL}.{other}": f"{MODEL}.{first}" for other, first in part.aliases.items()}
    return {other: part.tensors[first] for other, first in found.items() if first in part.tensors}


def _described(extent: Extent) -> TensorStorageMetadata:
    size = torch.Size(extent.shape)
    chunk = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
    return TensorStorageMetadata(TensorProperties(extent.type), size, [chunk])


def _path(key: str) -> tuple[str, ...]:
    """Where a tensor is in the nested dict that torch makes of a checkpoint."""
    kind, _, rest = key.partition(".")
    if kind == VERSIONS:
        version, _, name = rest.partition(".")
        return kind, version, name
    if kind == OPTIMIZER:
        name, _, what = rest.rpartition(".")
        return kind, name, what
    return kind, rest

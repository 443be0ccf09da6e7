"""Exporting: the weights of a save alone, for anything that knows the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.errors import InputError
from weft.runtime.initial.checkpoint import INDEX, SINGLE, STATE_DICTS
from weft.runtime.saves import tensors
from weft.runtime.saves.manifest import MODEL, Manifest, read_manifest

SAFETENSORS = ".safetensors"
LARGEST = 5_000_000_000  # bytes of a file of Hugging Face, unless one tensor has more


def export(folder: str | Path, target: str | Path, *, largest: int = LARGEST) -> None:
    """Write the weights and buffers of a save under the names of the whole model.

    model.pt            a state_dict, with all names of tied weights
    model.safetensors   one file, tied weights under their first name
    any other name      a folder as Hugging Face has it: one file, or several of at most
                        `largest` bytes and an index; its config.json is the model's own
    """
    folder, target = Path(folder), Path(target)
    manifest = read_manifest(folder)
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is there already; give another name, or remove it")
    if target.suffix in STATE_DICTS:
        _write_state_dict(folder, manifest, target)
    elif target.suffix == SAFETENSORS:
        _write_safetensors(target, _tensors(folder, manifest, manifest.weights))
    else:
        _write_folder(folder, manifest, target, largest)


def _write_state_dict(folder: Path, manifest: Manifest, target: Path) -> None:
    state = _tensors(folder, manifest, manifest.weights)
    aliases = manifest.part.aliases.items()
    state |= {other: state[first] for other, first in aliases if first in state}
    begun = target.with_name(f".{target.name}.begun")
    torch.save(state, begun)
    begun.rename(target)


def _write_folder(folder: Path, manifest: Manifest, target: Path, largest: int) -> None:
    target.mkdir(parents=True, exist_ok=True)
    shards = [*_shards(manifest, largest)]
    if len(shards) == 1:
        _write_safetensors(target / SINGLE, _tensors(folder, manifest, shards[0]))
        return
    files = [
        f"model-{index:05d}-of-{len(shards):05d}{SAFETENSORS}"
        for index in range(1, 1 + len(shards))
    ]
    for file, names in zip(files, shards, strict=True):
        _write_safetensors(target / file, _tensors(folder, manifest, names))
    index = {
        "metadata": {"total_size": sum(_bytes(manifest, name) for name in manifest.weights)},
        "weight_map": {name: f for f, names in zip(files, shards, strict=True) for name in names},
    }
    (target / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")


def _shards(manifest: Manifest, largest: int) -> Iterator[list[str]]:
    """The names of each file, in the order of the save."""
    names, size = list[str](), 0
    for name in manifest.weights:
        own = _bytes(manifest, name)
        if names and size + own > largest:
            yield names
            names, size = [], 0
        names.append(name)
        size += own
    yield names


def _bytes(manifest: Manifest, name: str) -> int:
    return manifest.part.tensors[f"{MODEL}.{name}"].bytes


def _tensors(folder: Path, manifest: Manifest, names: list[str]) -> dict[str, Tensor]:
    keys = {name: f"{MODEL}.{name}" for name in names}
    there = manifest.part.tensors
    return {name: tensors.read(folder, key, there[key]) for name, key in keys.items()}


def _write_safetensors(path: Path, state: dict[str, Tensor]) -> None:
    try:
        writing: Any = import_module("safetensors.torch")
    except ImportError as error:
        raise InputError(
            f"{path} is written by the package safetensors, which is not installed:"
            f" pip install 'weft[huggingface]'"
        ) from error
    begun = path.with_name(f".{path.name}.begun")
    writing.save_file(state, begun, metadata={"format": "pt"})
    begun.rename(path)

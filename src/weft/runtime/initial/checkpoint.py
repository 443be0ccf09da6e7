"""Checkpoints: weights by the names that they have in the whole model, read one by one.

Knows files and names; knows nothing of stages.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch
from torch import Tensor

from weft.errors import InputError

if TYPE_CHECKING:
    from safetensors import safe_open

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
STATE_DICTS = (".pt", ".pth", ".bin")

Initial: TypeAlias = str | Path | Mapping[str, Tensor]  # where a user has weights


class Checkpoint(Protocol):
    """Tensors by name; `where` says of what, for errors."""

    where: str

    @property
    def names(self) -> Collection[str]: ...

    def outline(self, name: str) -> Tensor:
        """The shape and type of one tensor, on meta."""

    def tensor(self, name: str) -> Tensor:
        """One tensor, on the CPU or where the user has it."""


def checkpoint_of(initial: Initial) -> Checkpoint:
    """What a user gives: a file, a folder of Hugging Face, or tensors by name."""
    if isinstance(initial, Mapping):
        return NamedTensors("the mapping given as initial=", initial)
    if not isinstance(initial, str | PathLike):
        raise InputError(
            f"initial= is a file, a folder, or a mapping from names to tensors as state_dict() is,"
            f" not a value of type {type(initial).__name__}"
        )
    path = Path(initial)
    if not path.exists():
        raise InputError(f"initial={path}: there is no such file or folder")
    if path.is_dir():
        return _of_folder(path)
    if path.suffix == ".safetensors":
        return Safetensors(path, dict.fromkeys(_names(path), path))
    if path.suffix in STATE_DICTS:
        return NamedTensors(str(path), _state_dict(path))
    raise InputError(
        f"initial={path}: give a .safetensors file, a folder with {SINGLE} or {INDEX}, a state_dict"
        f" ({', '.join(STATE_DICTS)}), or a mapping from names to tensors"
    )


class NamedTensors:
    """Tensors in memory, or mapped into it; each is asked for when it is needed."""

    def __init__(self, where: str, tensors: Mapping[str, Tensor]) -> None:
        self.where, self._tensors = where, tensors

    @property
    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def outline(self, name: str) -> Tensor:
        return torch.empty_like(self._tensors[name], device="meta")

    def tensor(self, name: str) -> Tensor:
        return self._tensors[name]


class Safetensors:
    """Tensors in files; each is opened for one tensor, and closed."""

    def __init__(self, where: Path, files: Mapping[str, Path]) -> None:
        self.where, self._files = str(where), files

    @property
    def names(self) -> Collection[str]:
        return self._files.keys()

    def outline(self, name: str) -> Tensor:
        with _opened(self._files[name]) as file:
            part = file.get_slice(name)
            shape = part.get_shape()
            some: Tensor = part[:0] if shape else file.get_tensor(name)
            return torch.empty(shape, dtype=some.dtype, device="meta")

    def tensor(self, name: str) -> Tensor:
        with _opened(self._files[name]) as file:
            found: Tensor = file.get_tensor(name)
            return found


def _of_folder(folder: Path) -> Checkpoint:
    """One file, or an index of several."""
    if (folder / INDEX).exists():
        try:
            index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
            files = {name: folder / file for name, file in index["weight_map"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{folder / INDEX} is not the index of a sharded checkpoint: it needs a weight_map"
                f" from names to files ({error!r})"
            ) from error
        absent = sorted({file.name for file in files.values() if not file.exists()})
        if absent:
            raise InputError(f"{folder / INDEX} names files that are not there: {absent}")
        return Safetensors(folder, files)
    if (folder / SINGLE).exists():
        return Safetensors(folder, dict.fromkeys(_names(folder / SINGLE), folder / SINGLE))
    there = sorted(path.name for path in folder.iterdir())
    raise InputError(f"initial={folder}: it has neither {SINGLE} nor {INDEX}, but {there[:8]}")


def _opened(path: Path) -> safe_open:
    """A safetensors file; what is wrong with it, if it is none."""
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise InputError(
            f"{path} is read by the package safetensors, which is not installed:"
            f" pip install 'weft[huggingface]'"
        ) from error
    try:
        return safe_open(path, framework="pt", device="cpu")
    except Exception as error:
        raise InputError(f"{path} is not a safetensors file: {error}") from error


def _names(path: Path) -> list[str]:
    with _opened(path) as file:
        return list(file.keys())


def _state_dict(path: Path) -> Mapping[str, Tensor]:
    """Tensors of a file that torch.save has written, mapped into memory."""
    try:
        found = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:
        raise InputError(
            f"{path} cannot be read tensor by tensor: {error}; write it with torch.save of a"
            f" state_dict, in its format of today"
        ) from error
    if not isinstance(found, Mapping):
        raise InputError(f"{path} is of type {type(found).__name__}; save a state_dict")
    for name, one in found.items():
        if not isinstance(one, Tensor):
            raise InputError(
                f"{path} is not a state_dict: {name!r} is of type {type(one).__name__}, not a"
                f" tensor; give the part of it that has the weights, as a mapping"
            )
    return found

"""The manifest: what a save says of itself, as JSON; tensors are named in it, and lie beside.

part-00001.json   what one process has written
weft.json         all parts together, and what belongs to the whole run
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from weft.errors import SaveError
from weft.runtime.saves.folders import MANIFEST
from weft.runtime.saves.packing import JSON
from weft.runtime.saves.tensors import Chunk, StoredTensor

FORMAT = 2
MODEL, BUFFERS, VERSIONS, OPTIMIZER = "model", "buffers", "versions", "optimizer"
EXTRA, GRADIENTS = "extra", "gradients"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What all processes know of a run that is saved.

    program   name of what it was trained by
    updates   how many there were
    position  the last of them that belong to this run of an asynchronous program
    seed      of everything random, which is keyed by the number of the step besides
    scale     after how many updates the loss scale became what, and good updates since; if any
    extra     what the user wants back
    pipes     how many copies of each stage there were
    piled     whether the gradients of the last steps wait for the next update
    enlarged  by how much these are
    """

    program: str
    updates: int
    position: int
    seed: int
    scale: JSON
    extra: Mapping[str, JSON]
    pipes: int = 1
    piled: bool = False
    enlarged: float | None = None


@dataclass(frozen=True, slots=True)
class SavePart:
    """What one process writes of a save.

    tensors     what each is, and where its chunks are, by key: "model.0.weight"
    aliases     other names of weights that have several, with the first
    versions    of each weight that has older ones, those that are kept
    staleness   of each weight of an asynchronous program, in updates
    optimizers  type, parameter groups, state and scheduler of each
    extras      what modules keep besides tensors (get_extra_state), by their names
    """

    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    versions: dict[str, list[int]] = field(default_factory=dict)
    staleness: dict[str, int] = field(default_factory=dict)
    optimizers: list[dict[str, JSON]] = field(default_factory=list)
    extras: dict[str, JSON] = field(default_factory=dict)

    @classmethod
    def joined(cls, parts: Sequence[SavePart]) -> SavePart:
        made, known = cls(), set[str]()
        for part in parts:
            for key, (dtype, shape, chunks) in part.tensors.items():
                made.tensors.setdefault(key, StoredTensor(dtype, shape, [])).chunks.extend(chunks)
            made.aliases.update(part.aliases)
            made.versions.update(part.versions)
            made.staleness.update(part.staleness)
            for name, extra in part.extras.items():
                made.extras.setdefault(name, extra)
            for entry in part.optimizers:  # of which copies have the same
                if (text := json.dumps(entry)) not in known:
                    known.add(text)
                    made.optimizers.append(entry)
        return made


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that a save says of itself."""

    run: Run
    part: SavePart

    def key(self, kind: str, names: Sequence[str]) -> str | None:
        """The key of a tensor that has any of these names."""
        found = (f"{kind}.{self.part.aliases.get(name, name)}" for name in names)
        return next((key for key in found if key in self.part.tensors), None)

    @property
    def weights(self) -> list[str]:
        """The names of all weights and buffers of the model, of tied ones the first."""
        return [
            key.removeprefix(f"{MODEL}.")
            for key in self.part.tensors
            if key.startswith(f"{MODEL}.")
        ]


def write_part(folder: Path, process: int, part: SavePart) -> None:
    """Let the first process know what this one has written; it is there at once, or not at all."""
    path = part_file(folder, process)
    begun = path.with_suffix(".begun")
    _write(begun, asdict(part))
    begun.rename(path)


def read_part(file: Path) -> SavePart:
    return _part(json.loads(file.read_text(encoding="utf-8")))


def part_file(folder: Path, process: int) -> Path:
    return folder / f"part-{process:05d}.json"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    content = {"format": FORMAT, "run": asdict(manifest.run), **asdict(manifest.part)}
    _write(folder / MANIFEST, content)


def read_manifest(folder: str | Path) -> Manifest:
    """What a save says of itself; refuse a folder that is none."""
    folder = Path(folder)
    path = folder / MANIFEST
    if not path.is_file():
        raise SaveError(
            f"{folder} is not a save of a pipeline, as it has no {MANIFEST}: give a folder that"
            f" Pipeline.save has written; weft.runtime.saves.newest(run) finds the last of a run"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = content.pop("format")
        if found != FORMAT:
            raise SaveError(f"{path} has format {found}, and this version reads {FORMAT}")
        run = Run(**content.pop("run"))
        part = _part(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = "it is not JSON" if isinstance(error, ValueError) else repr(error)
        raise SaveError(
            f"{path} cannot be read: {reason}; use another save, or remove {folder} so that a run"
            f" goes on from the one before"
        ) from error
    for chunk in (chunk for tensor in part.tensors.values() for chunk in tensor.chunks):
        if Path(chunk.file).name != chunk.file:
            raise SaveError(f"{path} names {chunk.file}, which is not in its folder")
    return Manifest(run, part)


def _part(content: dict[str, Any]) -> SavePart:
    tensors = {
        key: StoredTensor(dtype, tuple(shape), [*map(_chunk, chunks)])
        for key, (dtype, shape, chunks) in content.pop("tensors").items()
    }
    return SavePart(tensors, **content)


def _chunk(row: Sequence[Any]) -> Chunk:
    file, offset, length, start, shape = row
    if len(start) != len(shape):
        raise ValueError(f"a chunk of {file} begins at {start} and has shape {shape}")
    return Chunk(file, offset, length, tuple(start), tuple(shape))


def _write(path: Path, content: dict[str, Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())

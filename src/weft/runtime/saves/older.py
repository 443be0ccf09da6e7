"""Older versions: whether an asynchronous program can go on with the versions of a save.

PipeDream's forwards use weights that are some updates old. A run that is resumed uses the same
ones, or else it is another run: all stages start from the newest weights, as in the first step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from weft.ir.program import Program
from weft.ir.versions import staleness
from weft.runtime.device.shards import like
from weft.runtime.saves.manifest import MODEL, VERSIONS, Manifest
from weft.runtime.saves.parts import NamesOf
from weft.runtime.saves.regions import ReadTensor, Wanted, region_of
from weft.runtime.weights.staleness import Versions
from weft.runtime.weights.versions import Leaves, Newest, Stash


class StashNames(NamedTuple):
    """Weights of which versions are kept, and their names in a save, by those in the stage."""

    stash: Stash
    names: dict[str, str]
    needed: list[int]


class OlderVersions:
    """What a save has of the versions that this process needs."""

    def __init__(self, manifest: Manifest, program: Program, versions: Versions) -> None:
        self._manifest, self._versions = manifest, versions
        self._is_stashing = program.period is not None and program.is_stashing
        self._stale = staleness(program) if program.period is not None else []
        self._stashes: dict[int, StashNames] = {}
        self.is_as_stale = program.period is not None or not any(manifest.part.staleness.values())

    def add(self, stash: Stash, home: int, names_of: NamesOf) -> None:
        """Look for the versions of some weights."""
        run, part = self._manifest.run, self._manifest.part
        names = {name: self._known(names_of[stash.weight(name)]) for name in stash.names}
        needed = self._needed(home, stash) if self._is_stashing and run.position else []
        self._stashes[id(stash)] = StashNames(stash, names, needed)
        if self._stale:
            found = {part.staleness.get(name, 0) for name in names.values()}
            self.is_as_stale &= found <= {self._stale[home]}

    @property
    def are_there(self) -> bool:
        """Whether the program can go on, with the versions that it would have used."""
        return self._is_stashing and all(
            self._is_there(version, name, stash.types[own])
            for stash, names, needed in self._stashes.values()
            for own, name in names.items()
            for version in needed
        )

    @property
    def wanted(self) -> list[Wanted]:
        if not self.are_there:
            return []
        return [
            _wanted(stash, version, own, name)
            for stash, names, needed in self._stashes.values()
            for own, name in names.items()
            for version in needed
        ]

    def of(self, store: Newest | Stash, read: ReadTensor) -> dict[int, Leaves]:
        """The versions of some weights."""
        if id(store) not in self._stashes:
            return {}
        stash, names, needed = self._stashes[id(store)]
        return {
            version: {
                own: like(stash.weight(own), read(_wanted(stash, version, own, name)))
                for own, name in names.items()
            }
            for version in needed
        }

    def _known(self, names: Sequence[str]) -> str:
        """The name of a weight in the save."""
        key = self._manifest.key(MODEL, names)
        return names[0] if key is None else key.removeprefix(f"{MODEL}.")

    def _needed(self, home: int, stash: Stash) -> list[int]:
        """Versions that forwards to come use, and that the newest weights do not show."""
        run = self._manifest.run
        first, origin = run.position * self._versions.microbatches, run.updates - run.position
        coming = range(first, first + (stash.most + 1) * self._versions.microbatches)
        used = {origin + self._versions.of(home, microbatch) for microbatch in coming}
        return sorted(one for one in used if one < run.updates + stash.is_predicting)

    def _is_there(self, version: int, name: str, dtype: torch.dtype) -> bool:
        saved = self._manifest.part.tensors.get(_key(version, name))
        return saved is not None and saved.type == dtype


def _wanted(stash: Stash, version: int, own: str, name: str) -> Wanted:
    return _key(version, name), region_of(stash.weight(own))


def _key(version: int, name: str) -> str:
    return f"{VERSIONS}.{version}.{name}"

"""Matching: the tensors of stages with those of a save that have the same names.

What is missing, of another shape or of another model is refused before anything is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from weft.errors import SaveError
from weft.runtime.saves import tensors as files
from weft.runtime.saves.manifest import BUFFERS, MODEL, Manifest
from weft.runtime.saves.names import ModelNames, kept_by, unkept_by

LISTED = 10  # names in an error


class Matched:
    """Tensors of some stages, and what a save has for them."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        names: ModelNames,
        stages: Iterable[tuple[int, nn.Module]],
    ) -> None:
        self._folder, self._manifest, self._names = folder, manifest, names
        self._targets: list[tuple[Tensor, str]] = []
        self._known: dict[str, Tensor] = {}
        self._refuse_strange()
        missing, wrong = list[str](), list[str]()
        for stage, module in stages:
            found = [(MODEL, *one) for one in kept_by(module, stage)]
            found += [(BUFFERS, *one) for one in unkept_by(module, stage)]
            for kind, end, tensor in found:
                key = manifest.key(kind, names.all(end))
                if key is not None:
                    self._targets.append((tensor, key))
                    wrong += self._differing(key, tensor)
                elif kind == MODEL:
                    missing.append(names.first(end))
        self._refuse("has no", missing, "it is a save of another model")
        self._refuse("has other shapes or types than the model:", wrong, "make the model as it was")

    def read(self, others: Iterable[str]) -> None:
        """Read what the stages need, and other tensors of the save."""
        there = self._manifest.part.tensors
        for key in dict.fromkeys((*(key for _, key in self._targets), *others)):
            if key not in there:
                raise SaveError(f"{self._folder} names {key} and does not have it")
            self._known[key] = files.read(self._folder, key, there[key])

    def tensor(self, key: str) -> Tensor:
        """What was read."""
        return self._known[key]

    @torch.no_grad()
    def apply(self) -> None:
        """Copy the tensors of the save into those of the stages."""
        for tensor, key in self._targets:
            tensor.copy_(self._known[key])
        torch.clear_autocast_cache()  # of weights as they were

    def _differing(self, key: str, tensor: Tensor) -> list[str]:
        there = self._manifest.part.tensors[key]
        if there.shape == tuple(tensor.shape) and there.type == tensor.dtype:
            return []
        here = str(tensor.dtype).removeprefix("torch.")
        name = key.partition(".")[2]
        return [f"{name} {there.dtype} {[*there.shape]} for {here} {[*tensor.shape]}"]

    def _refuse_strange(self) -> None:
        """Refuse a save with weights that no stage of the whole model has."""
        known = self._names.every
        aliases = {first for other, first in self._manifest.part.aliases.items() if other in known}
        strange = [n for n in self._manifest.weights if n not in known and n not in aliases]
        self._refuse("has", strange, "which the model does not have: it is a save of another one")

    def _refuse(self, what: str, names: Sequence[str], why: str) -> None:
        if names:
            names = [*dict.fromkeys(names)]
            more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
            raise SaveError(f"{self._folder} {what} {', '.join(names[:LISTED])}{more}; {why}")

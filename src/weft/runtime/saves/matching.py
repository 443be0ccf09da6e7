"""Matching: the tensors of stages with those of a save that have the same names.

What is missing, of another shape or of another model is refused before anything is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from weft.errors import SaveError
from weft.runtime.device.shards import local
from weft.runtime.saves import tensors as files
from weft.runtime.saves.extra_state import with_extra_state
from weft.runtime.saves.manifest import BUFFERS, MODEL, Manifest
from weft.runtime.saves.names import ModelNames, kept_by, unkept_by
from weft.runtime.saves.packing import JSON, keys_in, unpack
from weft.runtime.saves.regions import Wanted, region_of

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
        self._targets: list[tuple[Tensor, Wanted]] = []
        self._known: dict[Wanted, Tensor] = {}
        self._extras: list[tuple[nn.Module, JSON]] = []
        self._refuse_strange()
        missing, wrong, untied = list[str](), list[str](), list[str]()
        for stage, module in stages:
            found = [(MODEL, *one) for one in kept_by(module, stage)]
            found += [(BUFFERS, *one) for one in unkept_by(module, stage)]
            for kind, end, tensor in found:
                key = manifest.key(kind, names.all(end))
                untied += self._untied(kind, names.all(end))
                if key is not None:
                    self._targets.append((tensor, (key, region_of(tensor))))
                    wrong += self._differing(key, tensor)
                elif kind == MODEL:
                    missing.append(names.first(end))
            missing += self._without_extra_state(module, stage)
        self._refuse("has no", missing, "it is a save of another model")
        self._refuse("has", untied, "they are one in the model: use a save of such a model")
        self._refuse("has other shapes or types than the model:", wrong, "make the model as it was")

    def _without_extra_state(self, module: nn.Module, stage: int) -> Iterator[str]:
        """The extra state of a stage that the save does not have; it is noted what it has."""
        for end, one in with_extra_state(module, stage):
            name = self._names.first(end)
            if name in self._manifest.part.extras:
                self._extras.append((one, self._manifest.part.extras[name]))
            else:
                yield name

    def read(self, others: Iterable[Wanted]) -> None:
        """Read what the stages need, and other tensors of the save."""
        there = self._manifest.part.tensors
        extras = [(key, None) for _, packed in self._extras for key in keys_in(packed)]
        for wanted in dict.fromkeys((*(one for _, one in self._targets), *extras, *others)):
            key, region = wanted
            if key not in there:
                raise SaveError(f"{self._folder} names {key} and does not have it")
            self._known[wanted] = files.read(self._folder, key, there[key], region)

    def tensor(self, wanted: Wanted) -> Tensor:
        """What was read."""
        return self._known[wanted]

    @torch.no_grad()
    def apply(self) -> None:
        """Copy the tensors of the save into those of the stages."""
        for tensor, wanted in self._targets:
            local(tensor).copy_(self._known[wanted])
        torch.clear_autocast_cache()  # of weights as they were
        for module, packed in self._extras:
            module.set_extra_state(unpack(packed, lambda key: self._known[key, None].clone()))

    def _untied(self, kind: str, names: Sequence[str]) -> list[str]:
        """What the save has apart of a tensor that is one here, in words."""
        found = {key: name for name in names if (key := self._manifest.key(kind, [name]))}
        return [" apart from ".join(found.values())] if len(found) > 1 else []

    def _differing(self, key: str, tensor: Tensor) -> list[str]:
        there, shape = self._manifest.part.tensors[key], region_of(tensor).whole
        if there.shape == shape and there.type == tensor.dtype:
            return []
        here = str(tensor.dtype).removeprefix("torch.")
        name = key.partition(".")[2]
        return [f"{name} {there.dtype} {[*there.shape]} for {here} {[*shape]}"]

    def _refuse_strange(self) -> None:
        """Refuse a save with weights that no stage of the whole model has."""
        known = self._names.every
        aliases = {first for other, first in self._manifest.part.aliases.items() if other in known}
        strange = [n for n in self._manifest.weights if n not in known and n not in aliases]
        strange += [name for name in self._manifest.part.extras if name not in self._names.extras]
        self._refuse("has", strange, "which the model does not have: it is a save of another one")

    def _refuse(self, what: str, names: Sequence[str], why: str) -> None:
        if names:
            names = [*dict.fromkeys(names)]
            more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
            raise SaveError(f"{self._folder} {what} {', '.join(names[:LISTED])}{more}; {why}")

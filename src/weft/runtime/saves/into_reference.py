"""What a save has for a reference: the whole model in one process, with its optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from weft.errors import SaveError
from weft.runtime.initial.blueprint import Blueprint
from weft.runtime.saves.manifest import VERSIONS, Run, read_manifest
from weft.runtime.saves.matching import Matched
from weft.runtime.saves.names import ModelNames, names_in
from weft.runtime.saves.optimizers import SavedOptimizers, Updater
from weft.runtime.saves.parts import OptimizedParts


class ReferenceSave:
    """A save, matched with the stages of a reference and the optimizer of each of them."""

    def __init__(
        self,
        folder: Path,
        blueprint: Blueprint,
        stages: Sequence[nn.Module],
        updaters: Mapping[int, Updater],
    ) -> None:
        manifest, names = read_manifest(folder), ModelNames(blueprint)
        if manifest.run.piled:
            raise SaveError(
                f"{folder} has gradients that wait for the next update (update=False), which a"
                f" reference does not take: use a save after an update, or Pipeline.load"
            )
        self._part = manifest.part
        self._matched = Matched(folder, manifest, names, enumerate(stages))
        saved = SavedOptimizers(self._part)
        names_of: dict[nn.Parameter, Sequence[str]] = {}
        for index, stage in enumerate(stages):
            names_of |= names_in(stage, index, names)
        self._optimizers = [
            saved.found(one, OptimizedParts.of(names_of)) for one in updaters.values()
        ]
        self._weights = {
            weight: self._part.aliases.get(every[0], every[0]) for weight, every in names_of.items()
        }
        states = [wanted for one in self._optimizers for wanted in one.wanted]
        versions = [(key, None) for key in self._part.tensors if key.startswith(f"{VERSIONS}.")]
        self._matched.read([*states, *versions])
        self.run: Run = manifest.run

    def apply(self) -> None:
        """Let the stages and their optimizers be as they were saved."""
        self._matched.apply()
        for optimizer in self._optimizers:
            optimizer.apply(self._matched.tensor)

    def versions(self) -> dict[int, dict[nn.Parameter, Tensor]]:
        """Weights as they were after earlier updates, as far as the save has them."""
        every = {version for versions in self._part.versions.values() for version in versions}
        return {version: dict(self._version(version)) for version in sorted(every)}

    def _version(self, version: int) -> Iterator[tuple[nn.Parameter, Tensor]]:
        for weight, name in self._weights.items():
            if version in self._part.versions.get(name, ()):
                saved = self._matched.tensor((f"{VERSIONS}.{version}.{name}", None))
                yield weight, saved.to(weight, copy=True)
            elif not weight.requires_grad:
                yield weight, weight.detach()  # which has been the same ever since

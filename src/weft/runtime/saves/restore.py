"""Restoring: what a save has for the tensors, optimizers and versions that this process holds.

found    by names; what does not fit is refused
read     into the memory of the host, all of it
applied  once every process has all of its own: nothing is changed before
"""

from __future__ import annotations

from pathlib import Path

from weft.runtime.assembly import Assembly
from weft.runtime.saves.gradients import PiledGradients
from weft.runtime.saves.manifest import Manifest
from weft.runtime.saves.matching import Matched
from weft.runtime.saves.names import ModelNames, names_in
from weft.runtime.saves.older import OlderVersions
from weft.runtime.saves.optimizers import ResumedOptimizer, SavedOptimizers, Updater
from weft.runtime.saves.parts import OptimizedParts
from weft.runtime.task import Task
from weft.runtime.weights.apart import ExpertCopies
from weft.runtime.weights.versions import Stash


class Restore:
    """A save, as far as it concerns this process."""

    def __init__(self, folder: Path, manifest: Manifest, task: Task, parts: Assembly) -> None:
        self._run, self._parts, self._names = manifest.run, parts, ModelNames(task.blueprint)
        stages = [(stage, module) for (_, stage), module in parts.modules.items()]
        self._matched = Matched(folder, manifest, self._names, stages)
        self._optimizers: list[ResumedOptimizer] = []
        self.older = OlderVersions(manifest, task.program, parts.weights.policy.versions)
        copies = ExpertCopies(task.program)
        self._piled = PiledGradients(manifest, parts.weights.policy, copies)
        self._find(SavedOptimizers(manifest.part))

    def _find(self, saved: SavedOptimizers) -> None:
        for (pipe, stage), module in self._parts.modules.items():
            names_of = names_in(module, stage, self._names)
            self._piled.add(module, pipe, stage)
            for group in self._parts.weights.groups[pipe, stage]:
                if group.optimizer is not None:
                    updater = Updater(group.optimizer, group.scheduler)
                    given = OptimizedParts.of(names_of, group.given)
                    self._optimizers.append(saved.found(updater, given))
                if isinstance(group.store, Stash):
                    self.older.add(group.store, group.stage, names_of)

    def read(self) -> None:
        """Read all that this process needs."""
        states = [wanted for optimizer in self._optimizers for wanted in optimizer.wanted]
        self._matched.read([*states, *self.older.wanted, *self._piled.wanted])

    def apply(self, position: int, seed: int) -> None:
        """Take all of it; an asynchronous program goes on from a position, or begins anew at 0.

        Forwards here draw by the seed, of which other shares of the batch may have others.
        """
        run, parts, read = self._run, self._parts, self._matched.tensor
        self._matched.apply()
        for optimizer in self._optimizers:
            optimizer.apply(read)
        parts.training.resume(run.updates, position)
        parts.draw.resume(seed, run.updates)
        scaling = parts.weights.policy.scaling
        if scaling is not None and run.scale is not None:
            scaling.resume(run.updates, *run.scale)
        for group in parts.weights.all_groups:
            versions = self.older.of(group.store, read) if position else {}
            group.store.resume(run.updates, versions)
        self._piled.apply(read)

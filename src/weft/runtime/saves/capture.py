"""Capturing: what this process has of a run, by the names of the whole model.

Each tensor is written once, or each of its shards, though several pipes, stages and processes may
hold it: a tied weight where it is first found, and of processes with the same one of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from weft.ir.versions import staleness
from weft.runtime.assembly import Assembly
from weft.runtime.device.shards import local
from weft.runtime.saves.extra_state import packed_extra, with_extra_state
from weft.runtime.saves.gradients import piled_gradients
from weft.runtime.saves.manifest import BUFFERS, MODEL, VERSIONS, SavePart
from weft.runtime.saves.names import ModelNames, kept_by, names_in, unkept_by
from weft.runtime.saves.optimizers import Updater, packed_updater
from weft.runtime.saves.parts import NamesOf, OptimizedParts
from weft.runtime.saves.regions import Held, region_of
from weft.runtime.saves.tensors import ChunkName
from weft.runtime.task import Task
from weft.runtime.weights.apart import ExpertCopies
from weft.runtime.weights.groups import ParameterGroup
from weft.runtime.weights.versions import Stash

FIRST_PIPE = 0


class Capture:
    """What a process could write: a part of a save that has no tensors yet, and chunks of these."""

    def __init__(self, task: Task, parts: Assembly, *, is_piled: bool) -> None:
        self.part, self.chunks = SavePart(), dict[ChunkName, Held]()
        self._names, program = ModelNames(task.blueprint), task.program
        self._staleness = None if program.period is None else staleness(program)
        self._has_versions = program.period is not None and parts.training.position > 0
        for (pipe, stage), module in parts.modules.items():
            names_of = names_in(module, stage, self._names)
            self._add_module(module, pipe, stage)
            for group in parts.weights.groups[pipe, stage]:
                if group.stage == stage:  # of a tied weight one
                    self._add_versions_of(group, names_of)
                    self._add_optimizer(group, names_of)
            if is_piled:
                copies = ExpertCopies(program)
                self._add(dict(piled_gradients(module, pipe, stage, copies)))

    def keep(self, writers: Mapping[ChunkName, int], process: int) -> None:
        """Leave to others what they write."""
        self.chunks = {name: one for name, one in self.chunks.items() if writers[name] == process}

    def to_host(self, *, is_copied: bool) -> None:
        """Bring tensors to the host, as they are now; copied, if training goes on meanwhile."""
        for name, one in self.chunks.items():
            moved = one.tensor.detach().to("cpu", copy=is_copied)
            self.chunks[name] = one._replace(tensor=moved)

    def _add(self, found: Mapping[str, Held]) -> None:
        """Take chunks of tensors, unless they are there already or are empty."""
        for key, one in found.items():
            if one.tensor.numel() or one.region.is_whole:
                self.chunks.setdefault((key, one.region.start), one)

    def _add_module(self, module: nn.Module, pipe: int, stage: int) -> None:
        """Weights are the same in all pipes; buffers may differ, and those of the first count."""
        is_first, weights = pipe == FIRST_PIPE, {id(weight) for weight in module.parameters()}
        for end, tensor in kept_by(module, stage):
            first, *others = self._names.all(end)
            is_alike = id(tensor) in weights
            if self._names.is_home(end) and (is_first or is_alike):
                self._add({f"{MODEL}.{first}": Held.of(tensor, is_alike=is_alike)})
                self.part.aliases.update(dict.fromkeys(others, first))
        if is_first:
            for end, buffer in unkept_by(module, stage):
                key = f"{BUFFERS}.{self._names.first(end)}"
                self._add({key: Held.of(buffer, is_alike=False)})
            self._add_extra_state(module, stage)

    def _add_extra_state(self, module: nn.Module, stage: int) -> None:
        for end, one in with_extra_state(module, stage):
            name, found = self._names.first(end), dict[str, Held]()
            self.part.extras[name] = packed_extra(one, name, found)
            self._add(found)

    def _add_optimizer(self, group: ParameterGroup, names_of: NamesOf) -> None:
        if group.optimizer is not None:
            updater, given = (
                Updater(group.optimizer, group.scheduler),
                OptimizedParts.of(names_of, group.given),
            )
            found = dict[str, Held]()
            self.part.optimizers.append(packed_updater(updater, given, found))
            self._add(found)

    def _add_versions_of(self, group: ParameterGroup, names_of: NamesOf) -> None:
        if self._staleness is not None:
            for weight in group.weights:
                self.part.staleness[names_of[weight][0]] = self._staleness[group.stage]
        if self._has_versions and isinstance(group.store, Stash):
            self._add_versions(group.store, names_of)

    def _add_versions(self, stash: Stash, names_of: NamesOf) -> None:
        for version, leaves in stash.kept().items():
            for name, leaf in leaves.items():
                weight = stash.weight(name)
                key = f"{VERSIONS}.{version}.{names_of[weight][0]}"
                self._add({key: Held(local(leaf), region_of(weight))})
        for name in stash.names:
            self.part.versions[names_of[stash.weight(name)][0]] = [*stash.kept()]

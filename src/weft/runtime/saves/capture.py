"""Capturing: what this process has of a run, by the names of the whole model.

Each tensor is written once, though several pipes and stages may hold it: by the process that has
the first pipe's copy, of the first stage where it is found. Where copies share updates, each writes
the optimizer state of its part.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from weft.errors import InputError
from weft.ir.versions import staleness
from weft.runtime.assembly import Assembly
from weft.runtime.saves.manifest import BUFFERS, MODEL, VERSIONS, SavePart
from weft.runtime.saves.names import ModelNames, kept_by, names_in, unkept_by
from weft.runtime.saves.optimizers import Updater, packed_updater
from weft.runtime.saves.parts import NamesOf, OptimizedParts
from weft.runtime.task import Task
from weft.runtime.weights.groups import ParameterGroup
from weft.runtime.weights.versions import Stash

FIRST_PIPE = 0


class Capture:
    """What a process writes: a part of a save that has no tensors yet, and these by key."""

    def __init__(self, task: Task, parts: Assembly) -> None:
        self.part, self.tensors = SavePart(), dict[str, Tensor]()
        self._names, program = ModelNames(task.blueprint), task.program
        self._staleness = None if program.period is None else staleness(program)
        self._has_versions = program.period is not None and parts.training.position > 0
        for (pipe, stage), module in parts.modules.items():
            names_of = names_in(module, stage, self._names)
            homes = [one for one in parts.weights.groups[pipe, stage] if one.stage == stage]
            if pipe == FIRST_PIPE:
                self._add_module(module, stage)
                for group in homes:  # of a tied weight one
                    self._add_versions_of(group, names_of)
            for group in homes:
                if pipe == FIRST_PIPE or group.given is not None:
                    self._add_optimizer(group, names_of)

    def to_host(self, *, is_copied: bool) -> None:
        """Bring tensors to the host, as they are now; copied, if training goes on meanwhile."""
        found = {key: tensor.detach() for key, tensor in self.tensors.items()}
        self.tensors = {key: one.to("cpu", copy=is_copied) for key, one in found.items()}

    def _add_module(self, module: nn.Module, stage: int) -> None:
        _refuse_unsaved(module, stage)
        for end, tensor in kept_by(module, stage):
            first, *others = self._names.all(end)
            if self._names.is_home(end):
                self.tensors[f"{MODEL}.{first}"] = tensor
                self.part.aliases.update(dict.fromkeys(others, first))
        for end, buffer in unkept_by(module, stage):
            self.tensors[f"{BUFFERS}.{self._names.first(end)}"] = buffer

    def _add_optimizer(self, group: ParameterGroup, names_of: NamesOf) -> None:
        if group.optimizer is not None:
            updater, given = (
                Updater(group.optimizer, group.scheduler),
                OptimizedParts.of(names_of, group.given),
            )
            self.part.optimizers.append(packed_updater(updater, given, self.tensors))

    def _add_versions_of(self, group: ParameterGroup, names_of: NamesOf) -> None:
        if self._staleness is not None:
            for weight in group.weights:
                self.part.staleness[names_of[weight][0]] = self._staleness[group.stage]
        if self._has_versions and isinstance(group.store, Stash):
            self._add_versions(group.store, names_of)

    def _add_versions(self, stash: Stash, names_of: NamesOf) -> None:
        for version, leaves in stash.kept().items():
            for name, leaf in leaves.items():
                first = names_of[stash.weight(name)][0]
                self.tensors[f"{VERSIONS}.{version}.{first}"] = leaf
                self.part.versions.setdefault(first, []).append(version)


def _refuse_unsaved(module: nn.Module, stage: int) -> None:
    """Refuse what a save cannot hold."""
    for name, one in module.named_modules():
        if type(one).get_extra_state is not nn.Module.get_extra_state:
            raise InputError(
                f"stage {stage}: {name or type(one).__name__} has get_extra_state, and what that"
                f" returns may be anything, which a save cannot hold; keep it in buffers"
            )
    for name, weight in module.named_parameters():
        if isinstance(weight, DTensor):
            raise InputError(
                f"stage {stage}: {name} is a DTensor, of which each process has a part, and saves"
                f" hold whole tensors; save it with torch.distributed.checkpoint"
            )

"""Gradients that have piled up: those of steps with update=False, which the next update adds.

    as many copies of a weight as in the save    each has its own again, bit for bit
    more, or fewer                               the first has the sum of all, the others none

Of weights that expert ranks hold apart, the ranks of a group have one copy together. All copies are
added up in the next update anyway, so that only rounding differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import torch
from torch import Tensor, nn

from weft.errors import InputError, SaveError
from weft.runtime.device.shards import is_sharded
from weft.runtime.initial.blueprint import joined
from weft.runtime.saves.manifest import GRADIENTS, MODEL, Manifest
from weft.runtime.saves.regions import Held, ReadTensor, Wanted, region_of
from weft.runtime.stage.calling import names_of
from weft.runtime.weights.apart import ExpertCopies
from weft.runtime.weights.policy import Policy


def piled_gradients(
    module: nn.Module, pipe: int, stage: int, copies: ExpertCopies
) -> Iterator[tuple[str, Held]]:
    """What has piled up in a copy of a stage, by key."""
    prefix = names_of(module, stage)
    for name, weight in module.named_parameters():
        grad = weight.grad
        if grad is None:
            continue
        if is_sharded(weight) or grad.layout is not torch.strided:
            raise InputError(
                f"{joined(prefix, name)} has a gradient that waits for the next update"
                f" (update=False) and is distributed over ranks or sparse, which no save has: save"
                f" after an update"
            )
        copy = copies.holders(pipe, weight).index(pipe)
        yield f"{GRADIENTS}.{copy}.{joined(prefix, name)}", Held(grad, region_of(weight))


class PiledGradients:
    """What a save has of gradients for the copies of stages in this process."""

    def __init__(self, manifest: Manifest, policy: Policy, copies: ExpertCopies) -> None:
        self._manifest, self._run = manifest, manifest.run
        self._policy, self._copies = policy, copies
        self._found: list[tuple[nn.Parameter, list[Wanted]]] = []
        if self._run.piled and (self._run.scale is None) != (policy.scaling is None):
            raise SaveError(
                "the save has gradients that wait for the next update (update=False), and their"
                " loss is scaled there or here alone: use the same precision= and scale=, or save"
                " after an update"
            )

    def add(self, module: nn.Module, pipe: int, stage: int) -> None:
        """Look for the gradients of a copy of a stage."""
        names: dict[nn.Parameter, list[str]] = {}
        for name, weight in module.named_parameters(remove_duplicate=False):
            names.setdefault(weight, []).append(joined(names_of(module, stage), name))
        for weight, every in names.items() if self._run.piled else ():
            there, region = self._manifest.part.tensors, region_of(weight)
            taken = self._taken(pipe, weight, every)
            keys = [f"{GRADIENTS}.{one}.{name}" for one in taken for name in every]
            found: list[Wanted] = [
                (key, region) for key in keys if key in there and there[key].has(region)
            ]
            if found:
                self._found.append((weight, found))

    def _taken(self, pipe: int, weight: nn.Parameter, names: Sequence[str]) -> range:
        """The copies of the save whose gradients one here has."""
        saved, holders = self._saved_copies(names), self._copies.holders(pipe, weight)
        copy = holders.index(pipe)
        if len(holders) == saved:
            return range(copy, copy + 1)
        return range(saved if copy == 0 else 0)

    def _saved_copies(self, names: Sequence[str]) -> int:
        """How many copies of a weight there were: each part of it was on another pipe."""
        key = self._manifest.key(MODEL, names)
        parts = 1 if key is None else len(self._manifest.part.tensors[key].chunks)
        return self._run.pipes // parts

    @property
    def wanted(self) -> list[Wanted]:
        return [one for _, wanted in self._found for one in wanted]

    def apply(self, read: ReadTensor) -> None:
        """Let the next update add these gradients to its own."""
        if not self._run.piled:
            return
        self._policy.carry(self._run.updates - 1)
        scale = self._policy.scale(self._run.updates)
        ratio = scale / (self._run.enlarged or scale)  # it knows of more updates, or of fewer
        for weight, wanted in self._found:
            total: Tensor = reduce(torch.add, map(read, wanted))
            weight.grad = total.to(weight, copy=True).mul_(ratio)

"""Gradients that have piled up: those of steps with update=False, which the next update adds.

    as many copies of each stage as in the save    each has its own again, bit for bit
    more, or fewer                                 the first has the sum of all, the others none

They are added up in the next update anyway, so that only rounding differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

import torch
from torch import Tensor, nn

from weft.errors import InputError, SaveError
from weft.runtime.device.shards import is_sharded
from weft.runtime.initial.blueprint import joined
from weft.runtime.saves.manifest import GRADIENTS, Manifest
from weft.runtime.saves.regions import Held, ReadTensor, Wanted, region_of
from weft.runtime.stage.calling import names_of
from weft.runtime.weights.policy import Policy


def piled_gradients(module: nn.Module, pipe: int, stage: int) -> Iterator[tuple[str, Held]]:
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
        yield f"{GRADIENTS}.{pipe}.{joined(prefix, name)}", Held(grad, region_of(weight))


class PiledGradients:
    """What a save has of gradients for the copies of stages in this process."""

    def __init__(self, manifest: Manifest, policy: Policy, *, pipes: int) -> None:
        self._run, self._tensors = manifest.run, manifest.part.tensors
        self._policy, self._pipes = policy, pipes
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
            keys = [f"{GRADIENTS}.{one}.{name}" for one in self._taken(pipe) for name in every]
            there: list[Wanted] = [(key, region_of(weight)) for key in keys if key in self._tensors]
            if there:
                self._found.append((weight, there))

    def _taken(self, pipe: int) -> range:
        """The copies of the save whose gradients one here has."""
        if self._pipes == self._run.pipes:
            return range(pipe, pipe + 1)
        return range(self._run.pipes if pipe == 0 else 0)

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

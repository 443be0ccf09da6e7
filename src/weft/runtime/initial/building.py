"""Building: the stages that a process holds are made there; all others stay as they are known.

functions called ──> what is on meta materialised ──> tied weights alike ──> checkpoint loaded
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.runtime.experts.apart import mark_again
from weft.runtime.initial.blueprint import Blueprint, Function, saved_tensors
from weft.runtime.initial.loading import (
    found_in,
    load,
    refuse_others,
    refuse_unexpected,
    refuse_unlike,
)
from weft.runtime.initial.materialise import Setter, drafted, materialise
from weft.runtime.initial.seeded import seeded
from weft.runtime.weights.ties import End


class Builder:
    """Makes stages of a blueprint on a device."""

    def __init__(self, blueprint: Blueprint, device: torch.device, seed: int) -> None:
        self._blueprint, self._device, self._seed = blueprint, device, seed
        self._setter = Setter(device, seed, blueprint.stages.init)

    def built(self, stages: Sequence[nn.Module], held: Collection[int]) -> list[nn.Module]:
        """The stages, those that are held with their values.

        `stages` are those of the blueprint, as they are or with modules of their own.
        """
        checkpoint = self._blueprint.checkpoint
        names: Mapping[End, str] = {}
        if checkpoint is not None:
            refuse_unexpected(checkpoint, self._blueprint.saved, self._blueprint.unsaved)
            names = found_in(checkpoint, self._blueprint.saved, held)
            refuse_others(checkpoint, names, stages)
            refuse_unlike(checkpoint, names, stages)
        groups = self._groups(held)
        values = {} if checkpoint is not None else self._values(groups, stages, held)
        made = [*stages]
        for index in sorted(held):
            made[index] = self._made(index, stages[index], names)
        self._tie(made, groups, values)
        if checkpoint is not None:
            load(checkpoint, names, made)
        return made

    def _made(self, index: int, stage: nn.Module, loaded: Collection[End]) -> nn.Module:
        """One stage; what is loaded has memory alone."""
        blueprint, made = self._blueprint, stage
        if index in blueprint.functions:
            made = self._called(index, blueprint.functions[index])
            _refuse_different(index, blueprint.stages[index], made, self._device)
        tied = (end for end, first in blueprint.firsts.items() if end != first)
        given = {end.name for end in (*loaded, *tied) if end.stage == index}
        keys = {end.name: key for end, key in blueprint.keys.items() if end.stage == index}
        materialise(made, keys, given, self._setter, f"stage {index}")
        return made

    def _called(self, index: int, function: Function) -> nn.Module:
        with seeded(self._seed, f"stage {index}", self._device), self._device:
            made = function()
        mark_again(made)
        return made

    def _groups(self, held: Collection[int]) -> dict[End, list[End]]:
        """The ends of each tied weight that are held, by the first of all."""
        groups: dict[End, list[End]] = {}
        for end, first in self._blueprint.firsts.items():
            if end.stage in held:
                groups.setdefault(first, []).append(end)
        return groups

    def _values(
        self, firsts: Iterable[End], stages: Sequence[nn.Module], held: Collection[int]
    ) -> dict[End, Tensor]:
        """What tied weights are set to by the first stage that has them, wherever that is held.

        A function that makes it is called for that here; what it sets where it is held is there.
        """
        blueprint, values = self._blueprint, dict[End, Tensor]()
        for first in firsts:
            stage, (owner, _, name) = first.stage, first.name.rpartition(".")
            if stage not in blueprint.functions:
                module, key = stages[stage].get_submodule(owner), blueprint.keys[End(stage, owner)]
                values[first] = drafted(module, name, key, self._setter, f"stage {stage}")
            elif stage not in held:
                values[first] = self._made(stage, stages[stage], ()).get_parameter(first.name)
        return values

    def _tie(
        self,
        made: Sequence[nn.Module],
        groups: Mapping[End, Sequence[End]],
        values: Mapping[End, Tensor],
    ) -> None:
        """Let all ends of a weight be one."""
        for first, (end, *others) in groups.items():
            weight = made[end.stage].get_parameter(end.name)
            if first in values:
                with torch.no_grad():
                    weight.copy_(values[first])
            for other in others:
                owner, _, name = other.name.rpartition(".")
                setattr(made[other.stage].get_submodule(owner), name, weight)


def _refuse_different(index: int, known: nn.Module, made: nn.Module, device: torch.device) -> None:
    """Refuse a function that returns another module than all ranks know."""
    where = f"the function of stage {index}"
    if _structure(made) != _structure(known):
        raise InputError(
            f"{where} returns another module than on the meta device: names, shapes, types or what"
            f" learns differ. Let it return the same whenever it is called"
        )
    for name, weight in made.named_parameters():
        if not weight.is_meta and weight.device != device:
            raise InputError(
                f"{where} puts {name} on {weight.device}, and this process computes on {device};"
                f" name no device in it"
            )


def _structure(module: nn.Module) -> list[tuple[object, ...]]:
    weights = [(name, one.requires_grad) for name, one in module.named_parameters()]
    state = saved_tensors(module).items()
    return [*weights, *((name, one.shape, one.dtype) for name, one in state)]

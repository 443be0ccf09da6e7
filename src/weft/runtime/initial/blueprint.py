"""Blueprints: the stages of a model as every rank knows them, before any of them is made.

A stage is given as a module, as a module on the meta device, which has names and shapes and no
values, or as a function that returns a module and is called on meta to learn the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.runtime.experts.apart import mark_again
from weft.runtime.initial.checkpoint import Checkpoint, Initial, checkpoint_of
from weft.runtime.initial.converted import as_read_by
from weft.runtime.initial.seeded import undisturbed
from weft.runtime.split.stages import Stages
from weft.runtime.stage.calling import names_of
from weft.runtime.weights.ties import End

META = torch.device("meta")

Function: TypeAlias = Callable[[], nn.Module]
GivenStages: TypeAlias = Sequence[nn.Module | Function]


@dataclass(frozen=True, eq=False)
class Blueprint:
    """What all ranks know of a model.

    stages      with those on meta that are made by functions
    functions   by stage
    keys        what each module draws its weights by: its first name in the whole model; by stage
                and name there
    firsts      of each weight without values that has several names, the first; by all of them
    saved       the names that a checkpoint may have for each tensor; by stage and name there
    unsaved     names of buffers that no checkpoint needs
    checkpoint  where values come from, if they come from one
    """

    stages: Stages
    functions: Mapping[int, Function]
    keys: Mapping[End, str]
    firsts: Mapping[End, End]
    saved: Mapping[End, Sequence[str]]
    unsaved: frozenset[str]
    checkpoint: Checkpoint | None

    @classmethod
    def of(cls, given: GivenStages, initial: Initial | None = None) -> Blueprint:
        """Call functions on meta; refuse those that cannot be called there."""
        functions = {
            index: one for index, one in enumerate(given) if not isinstance(one, nn.Module)
        }
        stages = _on_meta(given)
        saved = _saved(stages)
        known = {name for names in saved.values() for name in names}
        return cls(
            stages,
            functions,
            _keys(stages),
            _firsts(stages),
            saved,
            frozenset(_buffers(stages)) - known,
            None if initial is None else as_read_by(stages.model, checkpoint_of(initial), known),
        )

    def lacks(self, held: Iterable[int]) -> bool:
        """Whether something in these stages still has to get its values."""
        unmade = (one in self.functions or is_meta(self.stages[one]) for one in held)
        return self.checkpoint is not None or any(unmade)


def is_meta(stage: nn.Module) -> bool:
    """Whether something in a stage has no values yet."""
    return any(tensor.is_meta for tensor in (*stage.parameters(), *stage.buffers()))


def saved_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The weights and buffers that a checkpoint of a module has, with all names of each."""
    state = module.state_dict(keep_vars=True).items()
    return {name: one for name, one in state if isinstance(one, Tensor)}


def joined(*parts: str) -> str:
    """A name within a name; compiling a module changes neither."""
    return ".".join(part for part in parts if part).replace("_orig_mod.", "")


def _on_meta(given: GivenStages) -> Stages:
    made = [
        one if isinstance(one, nn.Module) else _outlined(one, index)
        for index, one in enumerate(given)
    ]
    for stage in made:
        mark_again(stage)
    if isinstance(given, Stages):
        return given.with_modules(made)
    return Stages(made)


def _outlined(function: Function, index: int) -> nn.Module:
    """The module that a function returns, on meta."""
    if not callable(function):
        raise InputError(
            f"stage {index} is of type {type(function).__name__}; give a module, or a function"
            f" without arguments that returns one"
        )
    why = "as every rank does with every stage to learn the names and shapes of its weights"
    try:
        with undisturbed(), META:
            made = function()
    except Exception as error:
        raise InputError(
            f"the function of stage {index} cannot be called on the meta device, {why}:"
            f" {type(error).__name__}: {error}. Let it make tensors by torch, without naming a"
            f" device or reading values, and load weights by initial=; or give a module"
        ) from error
    if not isinstance(made, nn.Module):
        raise InputError(
            f"the function of stage {index} returns a value of type {type(made).__name__};"
            f" it has to return a module"
        )
    for name, weight in made.named_parameters():
        if not weight.is_meta:
            raise InputError(
                f"the function of stage {index} was called on the meta device, {why}, and its"
                f" weight {name} is on {weight.device}: make the weight in the function, without"
                f" naming a device; or give the module itself"
            )
    return made


def _keys(stages: Sequence[nn.Module]) -> dict[End, str]:
    first: dict[int, str] = {}
    keys = {}
    for index, stage in enumerate(stages):
        prefix = names_of(stage, index)
        for name, module in stage.named_modules(remove_duplicate=False):
            keys[End(index, name)] = first.setdefault(id(module), joined(prefix, name))
    return keys


def _firsts(stages: Sequence[nn.Module]) -> dict[End, End]:
    ends: dict[int, list[End]] = defaultdict(list)
    for index, stage in enumerate(stages):
        for name, weight in stage.named_parameters(remove_duplicate=False):
            if weight.is_meta:
                ends[id(weight)].append(End(index, name))
    return {end: same[0] for same in ends.values() if len(same) > 1 for end in same}


def _saved(stages: Sequence[nn.Module]) -> dict[End, Sequence[str]]:
    """Tied weights have several names, of which a checkpoint may have any."""
    names: dict[int, list[str]] = defaultdict(list)
    ids = {}
    for index, stage in enumerate(stages):
        prefix = names_of(stage, index)
        for name, tensor in saved_tensors(stage).items():
            names[id(tensor)].append(joined(prefix, name))
            ids[End(index, name)] = id(tensor)
    return {end: names[key] for end, key in ids.items()}


def _buffers(stages: Sequence[nn.Module]) -> Iterator[str]:
    for index, stage in enumerate(stages):
        for name, _ in stage.named_buffers(remove_duplicate=False):
            yield joined(names_of(stage, index), name)

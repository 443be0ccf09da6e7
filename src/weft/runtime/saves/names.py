"""Names: what each tensor of a stage is called in a save, however the model is cut.

split by weft.split   the names of the whole model: "layers.3.weight"
a list of modules     those of nn.Sequential(*modules): "3.weight"
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from weft.runtime.experts.ranks import groups_in
from weft.runtime.initial.blueprint import Blueprint, joined, saved_tensors
from weft.runtime.saves.extra_state import EXTRA_STATE, with_extra_state
from weft.runtime.stage.calling import names_of
from weft.runtime.weights.ties import End


class ModelNames:
    """The names of all tensors of a model, by stage and name there."""

    def __init__(self, blueprint: Blueprint) -> None:
        self._stages, self._known = blueprint.stages, blueprint.saved
        self._homes: dict[str, End] = {}
        for end, names in blueprint.saved.items():
            self._homes.setdefault(names[0], end)

    def all(self, end: End) -> Sequence[str]:
        """Every name of a tensor: a tied weight has several, those of other stages among them."""
        prefix = names_of(self._stages[end.stage], end.stage)
        return self._known.get(end) or (joined(prefix, end.name),)

    def first(self, end: End) -> str:
        return self.all(end)[0]

    def is_home(self, end: End) -> bool:
        """Whether this is where a tensor is first found in the model."""
        return self._homes.get(self.first(end), end) == end

    @property
    def every(self) -> set[str]:
        """All names that a state_dict of the whole model has."""
        return {name for names in self._known.values() for name in names}

    @property
    def extras(self) -> set[str]:
        """The names of what modules of the whole model keep besides tensors."""
        stages = enumerate(self._stages)
        return {self.first(end) for index, one in stages for end, _ in with_extra_state(one, index)}


def kept_by(module: nn.Module, stage: int) -> Iterator[tuple[End, Tensor]]:
    """The weights and buffers of a stage that a state_dict has, each once."""
    seen = set[int]()
    for name, tensor in saved_tensors(module).items():
        if id(tensor) not in seen and name.rpartition(".")[2] != EXTRA_STATE:
            seen.add(id(tensor))
            yield End(stage, name), tensor


def unkept_by(module: nn.Module, stage: int) -> Iterator[tuple[End, Tensor]]:
    """The buffers of a stage that no state_dict has.

    None of a stage that exchanges tokens: each rank has made its own, which no forward changes.
    """
    if any(group.size > 1 for group in groups_in(module)):
        return
    kept = {id(tensor) for tensor in saved_tensors(module).values()}
    for name, buffer in module.named_buffers():
        if id(buffer) not in kept:
            yield End(stage, name), buffer


def names_in(module: nn.Module, stage: int, names: ModelNames) -> dict[nn.Parameter, Sequence[str]]:
    """All names of each weight of a stage."""
    return {weight: names.all(End(stage, name)) for name, weight in module.named_parameters()}

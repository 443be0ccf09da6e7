"""Weights that expert ranks hold apart, beside those that all copies of a stage have.

    copy 0   common   experts 0 1      gradients of common weights are summed over all copies,
    copy 1   common   experts 2 3      those of experts over the copies that have the same ones:
    copy 2   common   experts 0 1      copies 0 and 2
    copy 3   common   experts 2 3

Each copy of the first group measures the gradients of its experts; the first one of them those of
common weights as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from weft.errors import InputError
from weft.ir.expert_groups import copies_apart, expert_index
from weft.ir.program import Program
from weft.runtime.device.shards import is_sharded
from weft.runtime.experts.apart import apart_of, is_apart
from weft.runtime.weights.exchange import Grads
from weft.runtime.weights.groups import ParameterGroup
from weft.runtime.weights.ties import End


class SomeGrads:
    """Some weights of a parameter group, which are summed apart from the others."""

    def __init__(self, group: ParameterGroup, places: Sequence[int]) -> None:
        self._group, self._places = group, places
        self.weights: Sequence[nn.Parameter] = [group.weights[place] for place in places]

    def closed(self, update: int) -> Grads:
        grads = self._group.closed(update)
        return [grads[place] for place in self._places]

    def is_due(self, update: int, *, is_tied: bool) -> bool:
        return self._group.is_due(update, is_tied=is_tied)

    def sum_up(self, update: int, grads: Grads) -> None:
        whole = [*self._group.closed(update)]
        for place, grad in zip(self._places, grads, strict=True):
            whole[place] = grad
        self._group.sum_up(update, whole)


class Summed(NamedTuple):
    """Weights whose gradients are summed together: of one type, in which they are added."""

    are_apart: bool
    dtype: torch.dtype

    @classmethod
    def of(cls, weight: nn.Parameter) -> Summed:
        return cls(is_apart(weight), weight.dtype)


def kinds_of(weights: Iterable[nn.Parameter]) -> list[Summed]:
    """Those of some weights, each once, in their order."""
    return [*dict.fromkeys(map(Summed.of, weights))]


def chosen(groups: Sequence[ParameterGroup], kind: Summed) -> list[ParameterGroup | SomeGrads]:
    """Of some parameter groups the weights that are summed together."""
    found: list[ParameterGroup | SomeGrads] = []
    for group in groups:
        places = [i for i, weight in enumerate(group.weights) if Summed.of(weight) == kind]
        if places:
            is_whole = len(places) == len(group.weights)
            found.append(group if is_whole else SomeGrads(group, places))
    return found


@dataclass(frozen=True)
class ExpertCopies:
    """Which copies of a stage have which experts, by pipe."""

    program: Program

    @property
    def ranks(self) -> int:
        """Of a group."""
        return len(self.program.expert_groups[0]) if self.program.expert_groups else 1

    @property
    def measured(self) -> tuple[int, ...]:
        """The pipes whose gradients are measured: by them, all experts are."""
        return self.program.expert_groups[0] if self.program.expert_groups else (0,)

    def index(self, pipe: int) -> int:
        """Which of the ranks of its group a pipe is."""
        return expert_index(self.program.expert_groups, pipe)

    def alike(self, index: int) -> list[int]:
        """The pipes that have the experts of a rank."""
        pipes = len(self.program.placement.pipes)
        return copies_apart(self.program.expert_groups, self.measured[index], pipes)

    def holders(self, pipe: int, weight: nn.Parameter) -> list[int]:
        """The pipes that have the same of a weight as a pipe has."""
        every = [*range(len(self.program.placement.pipes))]
        return self.alike(self.index(pipe)) if is_apart(weight) else every

    def exchanges(self, weights: Sequence[nn.Parameter]) -> int:
        """How many sums over copies make the gradients of these weights whole."""
        has_copies = len(self.program.placement.pipes) > 1
        is_apart_summed = len(self.alike(0)) > 1
        kinds = kinds_of(weights)
        return sum(is_apart_summed if kind.are_apart else has_copies for kind in kinds)

    def places(self, pipe: int, at: Sequence[int], weights: Sequence[nn.Parameter]) -> list[int]:
        """Under which places the gradients of weights at these are measured; -1 for elsewhere."""
        index = self.index(pipe)
        return [
            place + index if is_apart(weight) else -1 if index else place
            for place, weight in zip(at, weights, strict=True)
        ]


def places_of(stages: Sequence[nn.Module]) -> dict[End, int]:
    """Where each weight stands in the model; one that ranks hold apart has a place for each."""
    found, place = dict[End, int](), 0
    for index, stage in enumerate(stages):
        for name, weight in stage.named_parameters():
            found[End(index, name)] = place
            place += apart_of(weight)[1]
    return found


def check_apart(
    stages: Sequence[nn.Module], ties: Sequence[Sequence[End]], program: Program
) -> None:
    """Refuse weights that are held apart otherwise than the program has its pipes."""
    ranks = ExpertCopies(program).ranks
    weights = [weight for stage in stages for weight in stage.parameters()]
    if any(map(is_apart, weights)) and any(map(is_sharded, weights)):
        raise InputError(
            "some weights are held apart by expert ranks, others are DTensors, and their norms are"
            " not measured together: use one of both"
        )
    for index, stage in enumerate(stages):
        for name, weight in stage.named_parameters():
            size = apart_of(weight)[1]
            if size not in (1, ranks):
                have = f"groups of {ranks}" if ranks > 1 else "no expert groups"
                raise InputError(
                    f"stage {index} has a part of {name}, which {size} expert ranks hold together,"
                    f" and {program.name} has {have}: give a mesh with a dimension 'ep' of {size}"
                    f" by mesh="
                )
    for end in (end for ends in ties for end in ends):
        if is_apart(stages[end.stage].get_parameter(end.name)):
            raise InputError(
                f"stage {end.stage} shares {end.name} with another stage, and expert ranks have"
                f" parts of it: give each stage experts of its own"
            )

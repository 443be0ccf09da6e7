"""Weights: every weight of a model where a stage uses it, and what it was after earlier updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.runtime.weights.options import Staleness


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """A weight as a stage uses it; `home` is the first stage that does, where it is updated."""

    stage: int
    name: str
    weight: nn.Parameter
    home: int

    @property
    def is_home(self) -> bool:
        return self.stage == self.home


ByUse: TypeAlias = dict[Use, Tensor]  # leaves that stages compute with, or their gradients


def uses_of(stages: Sequence[nn.Module]) -> list[Use]:
    """Every weight of every stage, in model order."""
    homes: dict[nn.Parameter, int] = {}
    return [
        Use(index, name, weight, homes.setdefault(weight, index))
        for index, stage in enumerate(stages)
        for name, weight in stage.named_parameters()
    ]


class History:
    """The weights of a model in the versions that are still needed.

    Older versions than the newest are kept if they are ever asked for, and moved to where the
    newest will be, if that is asked for: every update is expected to be like the last one.
    `types` are those that each stage computes with, by name, where a precision asks for others.
    """

    def __init__(
        self,
        uses: Sequence[Use],
        stale: Staleness,
        types: Sequence[Mapping[str, torch.dtype]],
        *,
        is_kept: bool,
    ) -> None:
        self._uses, self._stale, self._types, self._is_kept = uses, stale, types, is_kept
        self._older: dict[int, dict[nn.Parameter, Tensor]] = {}
        self.newest = 0

    def leaves(self, version: Callable[[int], int]) -> ByUse:
        """What every stage computes with, but for frozen weights of their own types.

        A tied weight is as its home has it.
        """
        found = [use for use in self._uses if use.weight.requires_grad or self._is_cast(use)]
        return {use: self._leaf(use, version(use.home)) for use in found}

    def _is_cast(self, use: Use) -> bool:
        return self._type(use) != use.weight.dtype

    def _type(self, use: Use) -> torch.dtype:
        return self._types[use.stage].get(use.name, use.weight.dtype)

    def _leaf(self, use: Use, version: int) -> Tensor:
        """The weight itself where nothing stands against it, so that modules find what they have.

        Else a leaf of its own: the same weight in another stage has another gradient.
        """
        value = self._value(use, version)
        if value is use.weight and use.is_home and not self._is_cast(use):
            return value
        leaf = value.detach().to(self._type(use))
        return leaf.requires_grad_(use.weight.requires_grad)

    def _value(self, use: Use, version: int) -> Tensor:
        if version == self.newest:
            return use.weight
        if version not in self._older:
            kept = [*self._older, self.newest]
            raise InputError(
                f"update {self.newest} asks for version {version} of stage {use.home}, of which"
                f" {kept} are kept; let the method name one of these"
            )
        value = self._older[version][use.weight]
        if not self._stale.predict or version <= self._stale.warmup:
            return value
        last = value - self._older[version - 1][use.weight]
        return value + (self.newest - version) * last

    def move_on(self, change: Callable[[], object]) -> None:
        """Make the next version: the newest, changed."""
        if self._is_kept:
            weights = {use.weight for use in self._uses}
            self._older[self.newest] = {weight: weight.detach().clone() for weight in weights}
        change()
        self.newest += 1

    def resume(self, newest: int, older: Mapping[int, dict[nn.Parameter, Tensor]]) -> None:
        """Go on from a version, which the weights are, with some of those before it."""
        self.newest, self._older = newest, dict(older)

    def forget(self, before: int) -> None:
        """Drop the versions that come before one."""
        for version in [version for version in self._older if version < before]:
            del self._older[version]

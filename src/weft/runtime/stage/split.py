"""Splitting a model into stages, and calling them with what stages before returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from weft.errors import InputError
from weft.runtime.stage.values import Value


class Slice(nn.Sequential):
    """Consecutive layers of a model under the names that they have there.

    As in nn.Sequential, a layer gets what the one before returns as its one argument.
    """


class Segment(nn.Module):
    """A part of a stage under the name that it has there.

    is_numbered  whether names of the stage begin with its number
    is_spread    whether a tuple is spread over the arguments
    """

    def __init__(self, name: str, module: nn.Module, *, is_numbered: bool, is_spread: bool) -> None:
        super().__init__()
        self.is_numbered, self.is_spread, self._path = is_numbered, is_spread, name
        *parents, last = name.split(".")
        place: nn.Module = self
        for parent in parents:
            place.register_module(parent, nn.Module())
            place = place.get_submodule(parent)
        place.register_module(last, module)

    def forward(self, *arguments: Any) -> Any:
        return self.get_submodule(self._path)(*arguments)


def split(
    model: nn.Sequential, *, stages: int, layers: Sequence[int] | None = None
) -> list[nn.Module]:
    """Slices of a sequential model: as equal as can be, or of given numbers of layers."""
    if not isinstance(model, nn.Sequential):
        raise InputError(
            f"{type(model).__name__} is no nn.Sequential; give a list of modules, one per stage"
        )
    if type(model).forward is not nn.Sequential.forward or "forward" in vars(model):
        raise InputError(
            f"{type(model).__name__} has a forward of its own, which its layers do not show; give"
            f" a list of modules, one per stage"
        )
    if model._forward_hooks or model._forward_pre_hooks or model._backward_hooks:
        raise InputError(
            f"{type(model).__name__} has hooks, which no slice of it can run; hook its layers"
        )
    children = list(model._modules.items())  # a layer may stand there several times
    if not 1 <= stages <= len(children):
        raise InputError(f"{len(children)} layers make 1 to {len(children)} stages, not {stages}")
    sizes = list(layers) if layers is not None else _even(len(children), stages)
    if len(sizes) != stages or sum(sizes) != len(children) or min(sizes) < 1:
        raise InputError(f"layers {sizes} do not cut {len(children)} layers into {stages} stages")
    ends = [sum(sizes[: index + 1]) for index in range(stages)]
    slices = []
    for size, end in zip(sizes, ends, strict=True):
        made = Slice().train(model.training)
        for name, child in children[end - size : end]:
            made.register_module(name, child)
        slices.append(made)
    return list(slices)


def called(stage: nn.Module, values: Sequence[Value]) -> Any:
    """What a stage returns for the values of the stages before it, or for its data.

    A tuple is spread over the arguments, unless a slice takes it as one.
    """
    if len(values) == 1 and values[0].structure.kind is None:  # a tensor
        return stage(values[0].leaves[0])
    if not is_spread(stage):
        return stage(*[value.tree for value in values])
    return stage(*[one for value in values for one in value.arguments])


def names_of(stage: nn.Module, index: int) -> str:
    """The prefix of a stage's names: none for a slice, else its number."""
    is_numbered = stage.is_numbered if isinstance(stage, Segment) else not is_slice(stage)
    return str(index) if is_numbered else ""


def is_spread(stage: nn.Module) -> bool:
    """Whether a stage gets a tuple as several arguments."""
    return stage.is_spread if isinstance(stage, Segment) else not is_slice(stage)


def is_slice(stage: nn.Module) -> bool:
    """Whether a stage, compiled or not, is a slice of a model."""
    return isinstance(getattr(stage, "_orig_mod", stage), Slice)


def _even(layers: int, stages: int) -> list[int]:
    size, larger = divmod(layers, stages)
    return [size + 1] * larger + [size] * (stages - larger)

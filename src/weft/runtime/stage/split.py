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


def split(
    model: nn.Sequential, *, stages: int, layers: Sequence[int] | None = None
) -> list[nn.Module]:
    """Slices of a sequential model: as equal as can be, or of so many layers each."""
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
    if is_slice(stage):
        arguments: tuple[Any, ...] = tuple(value.tree for value in values)
    else:
        arguments = tuple(one for value in values for one in value.arguments)
    return stage(*arguments)


def names_of(stage: nn.Module, index: int) -> str:
    """The prefix of a stage's names: none for a slice, else its number."""
    return "" if is_slice(stage) else str(index)


def is_slice(stage: nn.Module) -> bool:
    """Whether a stage, compiled or not, is a slice of a model."""
    return isinstance(getattr(stage, "_orig_mod", stage), Slice)


def _even(layers: int, stages: int) -> list[int]:
    size, larger = divmod(layers, stages)
    return [size + 1] * larger + [size] * (stages - larger)

"""A sequential model, cut between its layers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from weft.errors import InputError
from weft.runtime.split.stages import Stages
from weft.runtime.stage.calling import Slice


def sliced(model: nn.Module, *, stages: int, layers: Sequence[int] | None = None) -> Stages:
    """Slices of a sequential model: as equal as can be, or of given numbers of layers."""
    if not isinstance(model, nn.Sequential):
        raise InputError(
            f"{type(model).__name__} is not an nn.Sequential; give a list of modules, one per stage"
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
    sizes = sizes_of(len(children), stages, layers)
    ends = [sum(sizes[: index + 1]) for index in range(stages)]
    slices = []
    for size, end in zip(sizes, ends, strict=True):
        made = Slice().train(model.training)
        for name, child in children[end - size : end]:
            made.register_module(name, child)
        slices.append(made)
    return Stages(slices)


def sizes_of(count: int, stages: int, layers: Sequence[int] | None) -> list[int]:
    """How many of the layers each stage has: the given numbers, or as equal as can be."""
    if not 1 <= stages <= count:
        raise InputError(f"{count} layers make 1 to {count} stages, not {stages}")
    sizes = list(layers) if layers is not None else _even(count, stages)
    if len(sizes) != stages or sum(sizes) != count or min(sizes) < 1:
        raise InputError(f"layers {sizes} do not cut {count} layers into {stages} stages")
    return sizes


def _even(layers: int, stages: int) -> list[int]:
    size, larger = divmod(layers, stages)
    return [size + 1] * larger + [size] * (stages - larger)

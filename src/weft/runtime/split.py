"""Splitting a model into stages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from weft.errors import InputError


class Slice(nn.Sequential):
    """Consecutive layers of a model under the names that they have there."""


def split(
    model: nn.Sequential, *, stages: int, layers: Sequence[int] | None = None
) -> list[nn.Module]:
    """Slices of a sequential model: as equal as can be, or of so many layers each."""
    children = list(model.named_children())
    if not isinstance(model, nn.Sequential):
        raise InputError(
            f"{type(model).__name__} is no nn.Sequential; give a list of modules, one per stage"
        )
    if not 1 <= stages <= len(children):
        raise InputError(f"{len(children)} layers make 1 to {len(children)} stages, not {stages}")
    sizes = list(layers) if layers is not None else _even(len(children), stages)
    if len(sizes) != stages or sum(sizes) != len(children) or min(sizes) < 1:
        raise InputError(f"layers {sizes} do not cut {len(children)} layers into {stages} stages")
    ends = [sum(sizes[: index + 1]) for index in range(stages)]
    return [
        Slice(OrderedDict(children[end - size : end]))
        for size, end in zip(sizes, ends, strict=True)
    ]


def names_of(stage: nn.Module, index: int) -> str:
    """The prefix of a stage's names: none for a slice, else its number."""
    return "" if isinstance(stage, Slice) else str(index)


def _even(layers: int, stages: int) -> list[int]:
    size, larger = divmod(layers, stages)
    return [size + 1] * larger + [size] * (stages - larger)

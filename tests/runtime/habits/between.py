"""What users do with a layer between two steps, wherever they find it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tests.runtime.habits.hooked import Seen
from tests.runtime.habits.short import Short

SHRUNK = 0.875


@dataclass(frozen=True, slots=True, repr=False)
class Change(Short):
    """Something that is done to a layer before a step, both by number."""

    step: int
    what: str
    layer: int


def freeze(layers: Sequence[nn.Module]) -> None:
    for layer in layers:
        layer.requires_grad_(False)


def thaw(layers: Sequence[nn.Module]) -> None:
    for layer in layers:
        layer.requires_grad_(True)


def evaluate(layers: Sequence[nn.Module]) -> None:
    for layer in layers:
        layer.eval()


def shrink(layers: Sequence[nn.Module]) -> None:
    with torch.no_grad():
        for weight in chain.from_iterable(layer.parameters() for layer in layers):
            weight.mul_(SHRUNK)


def rebind(layers: Sequence[nn.Module]) -> None:
    for weight in chain.from_iterable(layer.parameters() for layer in layers):
        weight.data = weight.data * SHRUNK


def load(layers: Sequence[nn.Module]) -> None:
    for layer in layers:
        state = layer.state_dict()
        layer.load_state_dict({name: _shrunk(value) for name, value in state.items()})


def _shrunk(value: Any) -> Any:
    return value * SHRUNK if isinstance(value, Tensor) and value.is_floating_point() else value


def watch(layers: Sequence[nn.Module]) -> None:
    """Note what they return, all into one."""
    seen: Any = next((layer.seen for layer in layers if hasattr(layer, "seen")), Seen())
    for layer in layers:
        layer.seen = seen
        layer.register_forward_hook(lambda _layer, _given, output: _note(seen, output))


def _note(seen: Seen, output: Any) -> None:
    tensors = (one for one in tree_leaves(output) if isinstance(one, Tensor))
    seen.note("forward", next(tensors, None))


CHANGES: dict[str, Callable[[Sequence[nn.Module]], None]] = {
    one.__name__: one for one in (freeze, thaw, evaluate, shrink, rebind, load, watch)
}


def changed(changes: Iterable[Change], step: int, at: Callable[[int], Sequence[nn.Module]]) -> None:
    """What is done before a step, to the copies of layers that are here."""
    for change in changes:
        if change.step == step:
            CHANGES[change.what](at(change.layer))

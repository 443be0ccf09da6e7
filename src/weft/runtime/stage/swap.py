"""Swapping: a module computes with other tensors in the place of its own, for as long as it takes.

As torch.func.functional_call does, but for modules too that stand several times in one stage,
which that leaves changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeAlias

from torch import Tensor, nn

Slot: TypeAlias = tuple[dict[str, Any], str]  # the parameters or buffers of a module, and a name


class Slots:
    """Where the weights and buffers of a module stand, in all places."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._slots = _slots(module)

    @contextmanager
    def holding(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Let the module find these, by name, wherever it looks for its own."""
        if not tensors.keys() <= self._slots.keys():
            self._slots = _slots(self._module)  # some have come since
        places = [(*slot, tensor) for name, tensor in tensors.items() for slot in self._slots[name]]
        before = [store[name] for store, name, _ in places]
        for store, name, tensor in places:
            store[name] = tensor
        try:
            yield
        finally:
            for (store, name, _), own in zip(places, before, strict=True):
                store[name] = own


def _slots(module: nn.Module) -> dict[str, list[Slot]]:
    """Every place of each weight and buffer, under the first of its names."""
    stores = [store for one in module.modules() for store in (one._parameters, one._buffers)]
    found: dict[int, list[Slot]] = {}
    for store in stores:
        for name, tensor in store.items():
            found.setdefault(id(tensor), []).append((store, name))
    named = chain(module.named_parameters(), module.named_buffers())
    return {name: found[id(tensor)] for name, tensor in named}

"""Selective recompute: norms and activation functions of a model, marked to run again."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from weft.errors import InputError
from weft.runtime.stage.storage.marks import recomputed

ACTIVATIONS = ("torch.nn.modules.activation", "transformers.activations")  # where these are


def mark_selective(modules: Iterable[nn.Module]) -> int:
    """Mark all norms and activation functions within as recomputed; how many there are."""
    found = {id(one): one for module in modules for one in module.modules() if _is_cheap(one)}
    for one in found.values():
        recomputed(one)
    if not found:
        raise InputError(
            "the plan computes norms and activation functions again, and the model has none as"
            " modules; mark what is cheap yourself with weft.recomputed, and plan without it"
        )
    return len(found)


def _is_cheap(module: nn.Module) -> bool:
    """Whether it is a norm or a function of each element, and changes nothing in place."""
    kind = type(module)
    if next(module.children(), None) is not None or getattr(module, "inplace", False):
        return False
    return kind.__name__.endswith("Norm") or (
        kind.__module__ in ACTIVATIONS and next(module.parameters(), None) is None
    )

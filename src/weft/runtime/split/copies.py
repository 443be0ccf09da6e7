"""Copies of a model's parts, for runs that nobody is to notice."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TypeVar

from torch import Tensor, nn

from weft.errors import InputError

T = TypeVar("T")
LIBRARIES = ("torch.", "transformers.")


def copied(parts: T, modules: Sequence[nn.Module], what: str) -> T:
    """Copies of these modules, and of all that `parts` holds beside them, without users' hooks.

    Hooks of libraries stay: torch's compute weights, as that of `weight_norm` does, and those of
    transformers collect what routers return.
    """
    found = [module for one in modules for module in one.modules()]
    tensors = [value for module in found for value in vars(module).values()]
    computed = [one for one in tensors if isinstance(one, Tensor) and not one.is_leaf]
    memo: dict[int, object] = {id(one): one.detach().clone() for one in computed}
    try:
        made = copy.deepcopy(parts, memo)
    except Exception as error:
        raise InputError(
            f"{what} cannot be copied, to be compared with its stages: {error}"
        ) from error
    for module in found:
        twin = memo.get(id(module))
        if isinstance(twin, nn.Module):
            _unhook(twin)
    return made


def _unhook(module: nn.Module) -> None:
    for hooks in (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    ):
        for key, hook in [*hooks.items()]:
            homes = (type(hook).__module__, str(getattr(hook, "__module__", "")))
            if not any(home.startswith(LIBRARIES) for home in homes):
                del hooks[key]

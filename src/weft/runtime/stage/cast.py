"""Autocast: as it was set for a forward, and not at all for a backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.runtime.precision import FULL, Precision


class Cast(NamedTuple):
    """How autocast is set when a forward runs; it runs again so."""

    device: str
    dtype: torch.dtype | None

    @classmethod
    def here(cls, device: torch.device, precision: Precision = FULL) -> Cast:
        """As a precision has it, or else the user, around the step."""
        return cls(device.type, precision.autocast or _set(device.type))

    def again(self) -> AbstractContextManager[Any]:
        """Where a forward runs."""
        if self.dtype == _set(self.device):
            return nullcontext()
        return torch.autocast(self.device, self.dtype, enabled=self.dtype is not None)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Where a thread runs beside that for which this was set.

        The end of an outermost autocast drops what torch has cast, also for other threads: a weight
        that one of them uses twice would be cast twice, and its gradient be rounded otherwise.
        """
        torch.autocast_increment_nesting()
        try:
            with self.again():
                yield
        finally:
            torch.autocast_decrement_nesting()


def _set(device: str) -> torch.dtype | None:
    """What torch casts to at the moment, if it does."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A backward computes in the types of its forward, as it does outside of autocast."""
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


@contextmanager
def without_graph() -> Iterator[None]:
    """A forward that keeps nothing, nor lets autocast keep a weight without its graph."""
    is_cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_autocast_cache_enabled(is_cached)


def cast_from(saved: Tensor) -> Tensor | None:
    """The leaf that torch has cast to what autograd saves here, or to what that is a view of."""
    whole = saved if saved._base is None else saved._base
    node: Any = whole.grad_fn
    if node is None or node.name() != "ToCopyBackward0":
        return None
    leaf: Tensor | None = getattr(node.next_functions[0][0], "variable", None)
    return leaf

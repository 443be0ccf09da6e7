"""Autocast: as it was set for a forward, and not at all for a backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch


class Cast(NamedTuple):
    """How autocast was set when a forward ran; it runs again so."""

    device: str
    dtype: torch.dtype | None

    @classmethod
    def here(cls, device: torch.device) -> Cast:
        kind = device.type
        is_cast = torch.is_autocast_enabled(kind)
        return cls(kind, torch.get_autocast_dtype(kind) if is_cast else None)

    def again(self) -> AbstractContextManager[Any]:
        is_cast = torch.is_autocast_enabled(self.device)
        if self.dtype is None:
            return torch.autocast(self.device, enabled=False) if is_cast else nullcontext()
        return nullcontext() if is_cast else torch.autocast(self.device, self.dtype)


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

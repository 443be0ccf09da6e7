"""Sources: what forwards draw from, or what stands in for it.

Noted      a generator, which notes by which seeds something was drawn
Switched   no generator of its own: a seed chooses the one that a captured draw comes from
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor


class Source(Protocol):
    """What a forward draws from: seeded where the forward goes on to another module."""

    def manual_seed(self, seed: int) -> object: ...

    def get_state(self) -> Any: ...

    def set_state(self, state: Any) -> object: ...


class Noted:
    """A generator that notes by which of its seeds something was drawn."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._seeded: tuple[int, Tensor] | None = None  # with what, and the state after it
        self.seeds: list[int] = []

    def manual_seed(self, seed: int) -> None:
        self._look()
        self._generator.manual_seed(seed)
        self._seeded = seed, self._generator.get_state()

    def get_state(self) -> Tensor:
        return self._generator.get_state()

    def set_state(self, state: Tensor) -> None:
        self._look()
        self._seeded = None
        self._generator.set_state(state)

    def _look(self) -> None:
        if self._seeded is not None:
            seed, fresh = self._seeded
            if not torch.equal(fresh, self._generator.get_state()):
                self.seeds.append(seed)


class Switched:
    """Lets a seed choose where a captured draw comes from: seeds are not captured."""

    def __init__(self, choose: Callable[[int], None]) -> None:
        self._choose = choose

    def manual_seed(self, seed: int) -> None:
        self._choose(seed)

    def get_state(self) -> None:
        """Whoever captures puts things back."""

    def set_state(self, state: None) -> None:
        """Whoever captures puts things back."""

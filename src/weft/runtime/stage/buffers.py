"""Buffers of a stage: kept as they were, for forwards that run again.

F0   u = 0.1   a copy is kept, as this forward changes u
F1   u = 0.2   another one
R0   runs with u = 0.1, and leaves u = 0.3 alone
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from torch import Tensor, nn

Snapshot: TypeAlias = dict[str, Tensor]


class Copied(NamedTuple):
    """A copy of a buffer as it was at some version of it."""

    buffer: Tensor
    version: int
    copy: Tensor


class Buffers:
    """The buffers of one copy of a stage."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._kept: dict[str, Copied] = {}

    def snapshot(self) -> Snapshot:
        """All of them as they are now: one copy for as long as nothing changes."""
        found = {}
        for name, buffer in self._module.named_buffers():
            kept = self._kept.get(name)
            if kept is None or kept.buffer is not buffer or kept.version != buffer._version:
                kept = self._kept[name] = Copied(buffer, buffer._version, buffer.clone())
            found[name] = kept.copy
        return found

    def again(self, snapshot: Snapshot) -> dict[str, Tensor]:
        """What a forward runs with again: copies, since it may change them again."""
        return {name: copy.clone() for name, copy in snapshot.items()}

    def copies(self) -> dict[str, Tensor]:
        """Copies of all of them, for a forward that shall change nothing."""
        return {name: buffer.clone() for name, buffer in self._module.named_buffers()}

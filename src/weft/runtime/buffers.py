"""Buffers of a stage: kept as they were, for forwards that run again.

F0   u = 0.1   a copy is kept, as this forward changes u
F1   u = 0.2   another one
R0   runs with u = 0.1, and leaves u = 0.3 alone
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from torch import Tensor, nn

from weft.errors import InputError

Snapshot: TypeAlias = dict[str, Tensor]


class Kept(NamedTuple):
    """A copy of a buffer as it was at some version of it."""

    buffer: Tensor
    version: int
    copy: Tensor


class Buffers:
    """The buffers of one copy of a stage."""

    def __init__(self, module: nn.Module, stage: int) -> None:
        self._module, self._stage = module, stage
        self._kept: dict[str, Kept] = {}
        self._reason: str | None = None

    def begin(self, reason: str | None) -> None:
        """Let no forward change one, where there is a reason."""
        self._reason = reason
        if reason is not None:
            self.snapshot()

    def snapshot(self) -> Snapshot:
        """All of them as they are now: one copy for as long as nothing changes."""
        found = {}
        for name, buffer in self._module.named_buffers():
            kept = self._kept.get(name)
            if kept is None or kept.buffer is not buffer or kept.version != buffer._version:
                kept = self._kept[name] = Kept(buffer, buffer._version, buffer.clone())
            found[name] = kept.copy
        return found

    def again(self, snapshot: Snapshot) -> dict[str, Tensor]:
        """What a forward runs with again: copies, since it may change them again."""
        return {name: copy.clone() for name, copy in snapshot.items()}

    def copies(self) -> dict[str, Tensor]:
        """Copies of all of them, for a forward that shall change nothing."""
        return {name: buffer.clone() for name, buffer in self._module.named_buffers()}

    def check(self) -> None:
        """Refuse a forward that has changed a buffer where none may be."""
        if self._reason is None:
            return
        for name, kept in self._kept.items():
            buffer = self._module.get_buffer(name)
            if kept.buffer is not buffer or kept.version != buffer._version:
                raise InputError(f"stage {self._stage} changes its buffer {name}; {self._reason}")
        self.snapshot()

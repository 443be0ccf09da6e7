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
        self._rule: str | None = None
        self._has_versions = False
        self._state: dict[str, object] = {}

    def begin(self, rule: str | None, *, has_versions: bool) -> None:
        """Let no forward change what it finds, where there is a rule that says why.

        Where weights have versions, updates change them meanwhile.
        """
        self._rule, self._has_versions = rule, has_versions
        if rule is not None:
            self._state = self._found()

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
        """Refuse a forward that has changed what none may."""
        if self._rule is None:
            return
        for name, now in self._found().items():
            if name not in self._state or self._state[name] != now:
                raise InputError(f"stage {self._stage} changes its {name}; {self._rule}")

    def _found(self) -> dict[str, object]:
        """Weights and buffers by how often they were changed, and numbers that modules keep."""
        tensors = (
            *(("buffer", *one) for one in self._module.named_buffers()),
            *(
                ("weight", *one)
                for one in self._module.named_parameters()
                if not self._has_versions
            ),
        )
        found: dict[str, object] = {
            f"{kind} {name}": (id(tensor), tensor._version) for kind, name, tensor in tensors
        }
        for path, module in self._module.named_modules():
            for name, value in vars(module).items():
                if type(value) in (int, float):
                    found[f"attribute {path}.{name}".replace(" .", " ")] = value
        return found

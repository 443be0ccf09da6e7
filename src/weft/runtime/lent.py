"""Lent values: a user may change a batch once its step is over, though not all of it was read.

step      lent ──> read: the reader gets a copy
its end    └─────> not read yet: copied by then
"""

from __future__ import annotations

from weft.runtime.stage.values import Value


class LentValues:
    """Values of microbatches, by number; copies of those that are lent."""

    def __init__(self) -> None:
        self._values: dict[int, Value] = {}
        self._lent: set[int] = set()

    def __len__(self) -> int:
        return len(self._values)

    @property
    def are_all_ours(self) -> bool:
        """Whether nobody may change any of them."""
        return not self._lent

    def give(self, number: int, value: Value, *, is_lent: bool) -> None:
        self._values[number] = value
        (self._lent.add if is_lent else self._lent.discard)(number)

    def peek(self, number: int) -> Value | None:
        """What there is, not copied for it."""
        return self._values.get(number)

    def read(self, number: int) -> Value:
        if number in self._lent:
            self._copy(number)
        return self._values[number]

    def read_all(self) -> list[Value]:
        """In the order of their numbers."""
        return [self.read(number) for number in sorted(self._values)]

    def drop(self, number: int) -> None:
        """Let go of what nobody reads again."""
        self._values.pop(number, None)
        self._lent.discard(number)

    def keep(self) -> None:
        """End a step: copy what is lent and was not read yet."""
        for number in [*self._lent]:
            self._copy(number)

    def _copy(self, number: int) -> None:
        self._values[number] = self._values[number].cloned()
        self._lent.discard(number)

"""Loss scaling: by how much losses are enlarged so that small gradients survive in half precision.

The scale of an update depends on the updates that its weights have seen, so that every device
finds the same one, whatever the order in which they run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from weft.errors import InputError


@dataclass(frozen=True, slots=True)
class Scale:
    """A scale that halves after an update with gradients that are not finite, which is skipped.

    initial   of the first update
    interval  good updates in a row after which it doubles; None keeps it as it is
    """

    initial: float = 2.0**16
    interval: int | None = 2000

    def __post_init__(self) -> None:
        if not is_positive(self.initial) or self.initial == math.inf:
            raise InputError(
                f"losses cannot be enlarged by {self.initial!r}; use a number above 0, like 1024.0"
            )
        if self.interval is not None and self.interval < 1:
            raise InputError(
                f"a scale that doubles after {self.interval} updates; use 1 or more, or None for"
                f" one that never changes"
            )


def is_positive(value: Any) -> bool:
    """Whether something is a number above zero, whoever gives it."""
    return isinstance(value, Real) and float(value) > 0


class Scaling:
    """The scale of each update, from how the updates went that it knows of."""

    def __init__(self, scale: Scale) -> None:
        self._interval = scale.interval
        self._values = [scale.initial]  # after as many updates
        self._good = 0

    @property
    def known(self) -> int:
        """Updates whose outcome is in it."""
        return len(self._values) - 1

    def add(self, *, is_good: bool) -> None:
        """How the next update went."""
        value = self._values[-1]
        self._good = self._good + 1 if is_good else 0
        if self._interval is not None and not is_good:
            value /= 2
        elif self._interval is not None and self._good == self._interval:
            value, self._good = 2 * value, 0
        self._values.append(value)

    def keep(self) -> None:
        """The next update changed nothing: its gradients are added to those of the one after."""
        self._values.append(self._values[-1])

    def after(self, updates: int) -> float:
        """The scale once as many updates are known."""
        return self._values[updates]

    @property
    def history(self) -> tuple[list[tuple[int, float]], int]:
        """After how many updates it became what, and how many good ones came since the last."""
        steps = enumerate(zip([None, *self._values], self._values, strict=False))
        return [(index, value) for index, (before, value) in steps if value != before], self._good

    def resume(self, updates: int, changes: Sequence[tuple[int, float]], good: int) -> None:
        """Go on after as many updates; a scale that never changes is as its user has it."""
        if self._interval is None:
            changes, good = [(0, self._values[0])], 0
        values = list[float]()
        for index, value in changes:
            values += values[-1:] * (index - len(values))
            values.append(value)
        self._values = values + values[-1:] * (updates + 1 - len(values))
        self._good = good


def scaling_of(scale: Scale | float | None) -> Scaling | None:
    """A number is a scale that never changes."""
    if scale is None:
        return None
    return Scaling(scale if isinstance(scale, Scale) else Scale(scale, interval=None))

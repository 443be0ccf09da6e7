"""What an edge carries of what a stage returns."""

from __future__ import annotations

from typing import NamedTuple

from weft.errors import InputError
from weft.runtime.stage.values import Names, Value, learns


class Carried(NamedTuple):
    """What travels along an edge: `names` of a dict, to which no gradient comes back if fixed."""

    edge: tuple[int, int]
    names: Names
    is_fixed: bool

    def part(self, value: Value) -> Value:
        """What travels of a value; refuse what wants a gradient that does not come back."""
        part = value.picked(self.names)
        if self.is_fixed and any(map(_is_learning, part.leaves, part.structure.fixed)):
            source, reader = self.edge
            raise InputError(
                f"stage {source} hands stage {reader} a value that depends on weights, and no"
                f" gradient comes back along this edge, which is fixed; let it be none of the"
                f" graph's fixed edges, or detach the value"
            )
        return part


def _is_learning(leaf: object, is_fixed: bool) -> bool:
    return not is_fixed and learns(leaf)  # type: ignore[arg-type]

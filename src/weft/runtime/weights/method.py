"""What a program's method cannot do for its weights, refused with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from weft.errors import InputError
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.runtime.stage.modules import is_compiled
from weft.runtime.weights.options import Updating


def check_method(program: Program, stages: Sequence[nn.Module], updating: Updating) -> None:
    """Refuse what the program's method cannot do."""
    stale = updating.staleness
    if program.period is None and stale is not None:
        raise InputError(
            f"{program.name} is synchronous: its weights are never stale; leave `staleness` out"
        )
    updating.precision.check(stages)
    _check_without_stash(program, stages, updating)


def _check_without_stash(program: Program, stages: Sequence[nn.Module], updating: Updating) -> None:
    """Refuse what a backward with newer weights than its forward had cannot do."""
    if program.is_stashing:
        return
    if any(is_compiled(module) for stage in stages for module in stage.modules()):
        raise InputError(
            f"{program.name} stashes nothing: its backwards look up newer weights, which a compiled"
            f" stage does not do. Use stages as they are, or a schedule that stashes"
        )
    stale = updating.staleness
    if stale and stale.predict and (program.actions.kind == Kind.R).any():
        raise InputError(
            f"{program.name} stashes nothing and is recomputed: its backwards cannot start from"
            f" predicted forwards; leave out one of the two"
        )

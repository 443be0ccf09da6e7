"""What is known of a stage in the step at hand, before it computes anything."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from weft.runtime.stage.role import Role
from weft.runtime.stage.shapes import StageShapes
from weft.runtime.stage.values import Structure, Value

Own: TypeAlias = Callable[[Tensor], Tensor]


def computed(leaf: Tensor) -> Tensor:
    """A leaf as a module sees what another has computed; autocast keeps casts of leaves."""
    return leaf.view_as(leaf) if leaf.requires_grad else leaf


def copied(leaf: Tensor) -> Tensor:
    """A leaf of which a module gets a copy, laid out alike, as it may change it in place.

    Where rows are the same memory (`expand`), torch lets nobody change them.
    """
    is_strided = leaf.layout is torch.strided
    is_repeated = is_strided and any(
        n > 1 and not leaf.stride(at) for at, n in enumerate(leaf.shape)
    )
    return computed(leaf) if is_repeated else leaf.clone()


def _unknown(_: int) -> None:
    """The structure of a value that only the stage itself knows."""


class Known(NamedTuple):
    """What is known of a stage; at first, that it changes nothing.

    own           how the module gets its inputs, where not as they are
    disturbed_by  the reader, if there is one, that may disturb hooks of its outputs
    repeated      the weights that it uses more than once; None where that is not known
    structure     of what it returns for a microbatch
    changed_by    a reader that changes what it is given in place, as far as is known
    """

    own: Own | None = computed
    disturbed_by: int | None = None
    repeated: Collection[str] | None = ()
    structure: Callable[[int], Structure | None] = _unknown
    changed_by: int | None = None

    @classmethod
    def of(cls, role: Role, shapes: StageShapes | None, *, keeps_inputs: bool = False) -> Known:
        """What shapes say of a stage; without them, it may change its inputs, as may its readers.

        Of what passes between the segments of a stage they say nothing. A segment may say that it
        keeps its inputs as they are.
        """
        index = role.index
        own: Own | None = computed if keeps_inputs else copied
        if shapes is None or role.is_before:
            return cls(own, index if role.loss is None else None, None)
        repeated: Collection[str] | None = None
        if not role.is_after:
            plain = computed if shapes.casts(index) else None
            own = copied if shapes.changes_inputs(index) else plain
            repeated = shapes.repeated(index)
        return cls(
            own,
            shapes.disturbed_by(index),
            repeated,
            partial(shapes.structure, index),
            shapes.changed_by(index),
        )

    @property
    def changes_inputs(self) -> bool:
        return self.own is copied

    def undeferred(self, module: nn.Module, *, is_cast: bool) -> set[int]:
        """Weights of which it is known, or under autocast may be, that they have several uses."""
        repeated = self.repeated
        named = module.named_parameters()
        return {id(w) for n, w in named if (is_cast if repeated is None else n in repeated)}

    def marked(self, microbatch: int, value: Value) -> Value:
        """A value made without a graph, marked by what is known of gradients."""
        known = self.structure(microbatch)
        is_known = known is not None and known.unmarked == value.structure.unmarked
        return Value(value.leaves, known) if known is not None and is_known else value

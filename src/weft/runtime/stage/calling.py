"""Calling a stage with what the stages before it returned, and what its names begin with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from weft.errors import InputError
from weft.runtime.stage.values import Value


class Slice(nn.Sequential):
    """Consecutive layers of a model under the names that they have there.

    As in nn.Sequential, a layer gets what the one before returns as its one argument.
    """


class Piece(nn.Module):
    """A stage of a split model: it gets values by name, and returns a dict of them.

    Its modules have the names that they have in the model. The last piece of a model may return
    anything. A batch that is no dict is named by `takes`, in this order.

    takes  names of what it reads; what is not given is left out, and its forward has a default
    key    by which it draws, where it draws outside of the model's modules
    unread names that a batch may have besides, as loaders of such models give them
    """

    unread: tuple[str, ...] = ()
    is_drawing = True  # whether its own forward may draw, outside of its modules

    def __init__(self, takes: Sequence[str], key: str) -> None:
        super().__init__()
        self.takes, self.key = tuple(takes), key


class Absent(nn.Module):
    """Stands in a piece for a module that another stage has; draws nothing."""


class Segment(nn.Module):
    """Modules of a stage that run one after the other, under the names that they have there.

    is_numbered   whether names of the stage begin with its number
    is_spread     whether a tuple is spread over the arguments of the first
    keeps_inputs  whether the first says that it changes no input in place: none is copied then
    """

    def __init__(
        self, named: Sequence[tuple[str, nn.Module]], *, is_numbered: bool, is_spread: bool
    ) -> None:
        super().__init__()
        self.is_numbered, self.is_spread = is_numbered, is_spread
        self.keeps_inputs: bool = getattr(named[0][1], "keeps_inputs", False)
        self._paths = [name for name, _ in named]
        for name, module in named:
            *parents, last = name.split(".")
            place: nn.Module = self
            for parent in parents:
                if parent not in place._modules:
                    place.register_module(parent, nn.Module())
                place = place.get_submodule(parent)
            place.register_module(last, module)

    def forward(self, *arguments: Any) -> Any:
        first, *others = map(self.get_submodule, self._paths)
        value = first(*arguments)
        for module in others:
            value = module(value)
        return value


def called(stage: nn.Module, values: Sequence[Value]) -> Any:
    """What a stage returns for the values of the stages before it, or for its data.

    A tuple is spread over the arguments, unless a slice takes it as one; a piece gets its values by
    name.
    """
    piece = piece_of(stage)
    if piece is not None:
        return stage(**_by_name(piece, values))
    if len(values) == 1 and values[0].structure.kind is None:  # a tensor
        return stage(values[0].leaves[0])
    if not is_spread(stage):
        return stage(*[value.tree for value in values])
    return stage(*[one for value in values for one in value.arguments])


def names_of(stage: nn.Module, index: int) -> str:
    """The prefix of a stage's names: none for a slice or a piece, else its number."""
    if isinstance(stage, Segment):
        return str(index) if stage.is_numbered else ""
    return "" if is_slice(stage) or piece_of(stage) is not None else str(index)


def is_spread(stage: nn.Module) -> bool:
    """Whether a stage gets a tuple as several arguments."""
    return stage.is_spread if isinstance(stage, Segment) else not is_slice(stage)


def keeps_inputs(stage: nn.Module) -> bool:
    """Whether a segment says that it changes none of its inputs in place."""
    return isinstance(stage, Segment) and stage.keeps_inputs


def is_slice(stage: nn.Module) -> bool:
    """Whether a stage, compiled or not, is a slice of a model."""
    return isinstance(getattr(stage, "_orig_mod", stage), Slice)


def piece_of(stage: nn.Module) -> Piece | None:
    """The piece that a stage, compiled or not, is."""
    found = getattr(stage, "_orig_mod", stage)
    return found if isinstance(found, Piece) else None


def taken_by(stages: Sequence[nn.Module]) -> tuple[str, ...] | None:
    """The names that a batch may have, given to these stages; None where one takes no names."""
    pieces = [piece for piece in map(piece_of, stages) if piece is not None]
    if len(pieces) < len(stages):
        return None
    names = [name for piece in pieces for name in (*piece.takes, *piece.unread)]
    return tuple(dict.fromkeys(names))


def refuse_strange(batch: Value, taken: Sequence[str]) -> None:
    """Refuse what no stage would take of a batch."""
    kind, keys, parts = batch.structure.kind, batch.structure.keys, batch.structure.children
    known = ", ".join(taken)
    if kind is not None and issubclass(kind, Mapping):
        strange = [str(key) for key in keys if key not in taken]
        if strange:
            raise InputError(
                f"the batch has {', '.join(strange)}, which no stage takes: the model takes"
                f" {known}; leave out the rest"
            )
    elif kind is tuple and len(parts) > len(taken):
        raise InputError(f"the batch has {len(parts)} parts, and the model takes {known}")


def _by_name(piece: Piece, values: Sequence[Value]) -> dict[str, Any]:
    """What a piece takes of values; those without names are a batch."""
    found: dict[str, Any] = {}
    for value in values:
        tree = value.tree
        named = (
            tree if isinstance(tree, Mapping) else zip(piece.takes, value.arguments, strict=False)
        )
        found.update(named)
    return {name: one for name, one in found.items() if name in piece.takes}

"""Values: what passes between stages, a tree of tensors of any structure.

    {"x": tensor, "lengths": (tensor, None)}    leaves: two tensors
                                                structure: where they stand, and the rest

Tensors travel; the structure travels with them unless it is plain: one tensor, or a tuple of two
or more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from weft.errors import InputError
from weft.runtime.device.accelerator import onto
from weft.runtime.device.shards import local

T = TypeVar("T")
Names: TypeAlias = tuple[str, ...] | None  # of a dict, all of which is meant by None
Carries: TypeAlias = Mapping[tuple[int, int], Names]  # what travels along an edge

TYPES = (
    "only tensors, numbers, text, None, and tuples, lists, dicts and dataclasses of these pass"
    " between stages"
)


@dataclass(frozen=True, slots=True)
class Structure:
    """How leaves make up a value.

    A tensor's place has no kind and no children; a constant is in `keys`.
    """

    kind: type | None = None
    keys: tuple[Any, ...] = ()
    children: tuple[Structure, ...] = ()

    @property
    def leaves(self) -> int:
        if self.kind is None:
            return 1
        return sum(child.leaves for child in self.children)

    @property
    def is_plain(self) -> bool:
        """Whether the number of leaves says it all."""
        return self == plain(self.leaves)

    @property
    def fixed(self) -> tuple[bool, ...]:
        """Which leaves want no gradient though they could have one."""
        return (False,) if self is TENSOR else _fixed(self)

    @property
    def unmarked(self) -> Structure:
        return _marked(self, (False,) * self.leaves)


TENSOR = Structure()
FIXED = Structure(None, ("fixed",))  # a tensor that does not depend on any weight


@lru_cache(maxsize=256)
def _fixed(structure: Structure) -> tuple[bool, ...]:
    if structure.kind is None:
        return (structure is FIXED or structure == FIXED,)
    return tuple(one for child in structure.children for one in _fixed(child))


@lru_cache(maxsize=256)
def _marked(structure: Structure, fixed: tuple[bool, ...]) -> Structure:
    """The same with these leaves fixed."""
    if structure.kind is None:
        return FIXED if fixed[0] else TENSOR
    children, place = [], 0
    for child in structure.children:
        children.append(_marked(child, fixed[place : place + child.leaves]))
        place += child.leaves
    return Structure(structure.kind, structure.keys, tuple(children))


@lru_cache(maxsize=64)
def plain(leaves: int) -> Structure:
    """A tensor, or a tuple of several."""
    return TENSOR if leaves == 1 else Structure(tuple, (), (TENSOR,) * leaves)


@lru_cache(maxsize=256)
def part_of(structure: Structure, names: tuple[str, ...]) -> tuple[Structure, tuple[int, ...]]:
    """What a dict has under these names, and which of its leaves those are."""
    if structure.kind is None or not issubclass(structure.kind, Mapping):
        found = "a tensor" if structure.kind is None else f"a {structure.kind.__name__}"
        raise InputError(
            f"a stage returns {found}, and {', '.join(names)} of it travel to other stages; let it"
            f" return a dict with these names"
        )
    kept, places, place = [], list[int](), 0
    for key, child in zip(structure.keys, structure.children, strict=True):
        if key in names:
            kept.append((key, child))
            places += range(place, place + child.leaves)
        place += child.leaves
    part = Structure(dict, tuple(key for key, _ in kept), tuple(child for _, child in kept))
    return part, tuple(places)


def spread(part: Sequence[T], whole: Structure, names: Names) -> Sequence[T | None]:
    """What belongs to the leaves under these names, each at the place of its leaf in the whole.

    Nothing, for a part that is left out.
    """
    found: list[T | None] = [None] * whole.leaves
    if names is None:
        return part or found
    for place, one in zip(part_of(whole, names)[1], part, strict=bool(part)):
        found[place] = one
    return found


class Value(NamedTuple):
    """The tensors of a value, and its structure."""

    leaves: tuple[Tensor, ...]
    structure: Structure

    @classmethod
    def of(cls, tree: Any, what: str) -> Value:
        """Take a tree apart; `what` it is, should it not be one."""
        if isinstance(tree, Tensor):
            return cls((tree,), TENSOR)
        leaves: list[Tensor] = []
        structure = _structure(tree, leaves, what, "")
        return cls(tuple(leaves), structure)

    @property
    def tree(self) -> Any:
        """The value as a module sees it."""
        if self.structure.kind is None:
            return self.leaves[0]
        return _tree(self.structure, iter(self.leaves))

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The value as arguments: a tuple is spread."""
        if self.structure.kind is None:
            return self.leaves
        tree = self.tree
        return tree if type(tree) is tuple else (tree,)

    def with_leaves(self, leaves: Iterable[Tensor]) -> Value:
        return Value(tuple(leaves), self.structure)

    def marked(self) -> Value:
        """The same, with what wants no gradient marked."""
        if self.structure is TENSOR and self.leaves[0].requires_grad:
            return self
        fixed = tuple([learns(leaf) and not leaf.requires_grad for leaf in self.leaves])
        return Value(self.leaves, _marked(self.structure, fixed)) if any(fixed) else self

    def picked(self, names: Names) -> Value:
        """What a dict has under these names; everything, where none are given."""
        if names is None:
            return self
        structure, places = part_of(self.structure, names)
        return Value(tuple([self.leaves[place] for place in places]), structure)

    def to(self, device: torch.device) -> Value:
        return self.with_leaves(onto(leaf, device) for leaf in self.leaves)

    def cloned(self) -> Value:
        return self.with_leaves(leaf.clone() for leaf in self.leaves)

    def named(self) -> list[tuple[str, Tensor]]:
        """The leaves by where they stand."""
        return list(zip(_places(self.structure, ""), self.leaves, strict=True))

    def packed(self) -> list[Tensor | Structure]:
        """What travels."""
        is_plain = self.structure is TENSOR or self.structure.is_plain
        return [*self.leaves] if is_plain else [*self.leaves, self.structure]

    @classmethod
    def unpacked(cls, content: Sequence[Any]) -> Value:
        if content and isinstance(content[-1], Structure):
            return cls(tuple(content[:-1]), content[-1])
        return cls(tuple(content), plain(len(content)))


def _structure(tree: Any, leaves: list[Tensor], what: str, place: str) -> Structure:
    if isinstance(tree, Tensor):
        leaves.append(tree)
        return TENSOR
    if tree is None or type(tree) in (bool, int, float, str):
        return Structure(type(tree), (tree,))
    keys, children = _opened(tree, what, place)
    names = keys or range(len(children))
    return Structure(
        type(tree),
        keys,
        tuple(
            _structure(child, leaves, what, f"{place}[{name!r}]")
            for name, child in zip(names, children, strict=True)
        ),
    )


def _opened(tree: Any, what: str, place: str) -> tuple[tuple[Any, ...], Sequence[Any]]:
    """The keys of a node, if it has any, and what stands there."""
    if isinstance(tree, tuple | list):
        return (), list(tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = tuple(field.name for field in dataclasses.fields(tree))
        return names, [getattr(tree, name) for name in names]
    if isinstance(tree, Mapping) and all(type(key) in (bool, int, str) for key in tree):
        return tuple(tree), list(tree.values())
    where = f" at {place}" if place else ""
    raise InputError(f"{what} has a {type(tree).__name__}{where}; {TYPES}")


def _tree(structure: Structure, leaves: Any) -> Any:
    kind, keys = structure.kind, structure.keys
    if kind is None:
        return next(leaves)
    if not structure.children and keys:
        return keys[0]
    children = [_tree(child, leaves) for child in structure.children]
    if kind is tuple or kind is list:
        return kind(children)
    if issubclass(kind, tuple):
        is_named = hasattr(kind, "_fields")
        return kind(*children) if is_named else kind(children)
    if dataclasses.is_dataclass(kind):
        return _data(kind, dict(zip(keys, children, strict=True)))
    made: Any = kind(children) if issubclass(kind, list) else kind()
    if not issubclass(kind, list):
        made.update(zip(keys, children, strict=True))
    return made


def _data(kind: type, fields: dict[str, Any]) -> Any:
    """A dataclass again; one that is a mapping as well fills that by its constructor."""
    if issubclass(kind, Mapping):
        return kind(**fields)
    made = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def _places(structure: Structure, place: str) -> list[str]:
    if structure.kind is None:
        return [place]
    names = structure.keys or range(len(structure.children))
    pairs = zip(names, structure.children, strict=False)
    return [found for name, child in pairs for found in _places(child, f"{place}[{name!r}]")]


def contiguous(value: Tensor) -> Tensor:
    """A value without its history, laid out as it travels: the same in one process and in many."""
    found = value.detach().resolve_conj().resolve_neg()  # else it is not what its memory has
    return found if found.is_contiguous() else found.contiguous()


def fingerprint(value: Tensor) -> float:
    """A number by which tensors differ, or their shards that are here."""
    own = local(value)
    plain = torch.view_as_real(own) if own.is_complex() else own
    return float(plain.detach().double().sum())


def learns(value: Tensor) -> bool:
    """Whether a value can have a gradient."""
    return value.is_floating_point() or value.is_complex()

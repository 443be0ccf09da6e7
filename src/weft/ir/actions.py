"""Actions: the unit of work, one at a time (`Action`) or packed in columns (`Actions`).

Knows nothing of devices, graphs or time. A million frozen objects take seconds to make, a
million packed integers milliseconds; so programs store `Actions` and hand out `Action` views.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.errors import InputError
from weft.ir.kinds import Kind

Column: TypeAlias = NDArray[np.int32]
Index: TypeAlias = NDArray[np.int64]


class Action(NamedTuple):
    """One unit of work; `None` where a field does not apply.

    span     covers microbatches microbatch ... microbatch + span - 1
    version  the weights it uses; an update reads `version` and writes `version + 1`
    pipe     which copy of the pipeline; follows from the microbatch where there is one
    edge     index into the graph's edges, for sends and receives; of a sum or update that concerns
             only the stage's end of a tied weight, index into the program's ties
    segment  position of a part of a layer in forward order, after the experts pass
    """

    stage: int
    kind: Kind
    microbatch: int | None = None
    span: int = 1
    version: int | None = None
    pipe: int = 0
    edge: int | None = None
    segment: int | None = None


class Pair(NamedTuple):
    """Two actions that a device runs as one slot: both start, end and send together."""

    first: Action
    second: Action


@dataclass(frozen=True, slots=True, eq=False)
class Actions:
    """Actions in columns; -1 where a field does not apply.

    `joined` marks an action that shares its slot with the one before it (a pair's second).
    """

    stage: Column
    kind: Column
    microbatch: Column
    span: Column
    version: Column
    pipe: Column
    edge: Column
    segment: Column
    joined: Column

    @classmethod
    def of(
        cls,
        stage: ArrayLike,
        kind: ArrayLike,
        microbatch: ArrayLike = -1,
        **others: ArrayLike,
    ) -> Actions:
        """Columns from arrays and scalars, broadcast to one length."""
        given = {**_DEFAULTS, "stage": stage, "kind": kind, "microbatch": microbatch, **others}
        arrays = np.broadcast_arrays(*(np.asarray(given[name], np.int32) for name in COLUMNS))
        return cls(*(np.ascontiguousarray(np.atleast_1d(array)) for array in arrays))

    @classmethod
    def collect(cls, items: Iterable[Action | Pair]) -> Actions:
        """Columns from single actions and pairs, in order."""
        rows = array("i")
        for item in items:
            if isinstance(item, Pair):
                rows.extend((*_packed(item.first), 0, *_packed(item.second), 1))
            else:
                rows.extend((*_packed(item), 0))
        table = np.array(rows, np.int32).reshape(-1, len(COLUMNS))
        return cls(*(np.ascontiguousarray(column) for column in table.T))

    @classmethod
    def concatenate(cls, parts: Iterable[Actions]) -> Actions:
        """One after the other."""
        parts = list(parts)
        if not parts:
            return cls.collect([])
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in COLUMNS))

    def take(self, index: ArrayLike | slice) -> Actions:
        """The actions at these positions, in this order."""
        where = index if isinstance(index, slice) else np.asarray(index)
        return Actions(*(getattr(self, name)[where] for name in COLUMNS))

    def replace(self, **columns: ArrayLike) -> Actions:
        """The same actions with some columns changed."""
        new = {name: getattr(self, name) for name in COLUMNS}
        for name, column in columns.items():
            array = np.asarray(column, np.int32)
            new[name] = np.ascontiguousarray(np.broadcast_to(array, new[name].shape))
        return Actions(**new)

    def __len__(self) -> int:
        return len(self.kind)

    @overload
    def __getitem__(self, index: int) -> Action: ...
    @overload
    def __getitem__(self, index: slice) -> Actions: ...
    def __getitem__(self, index: int | slice) -> Action | Actions:
        if isinstance(index, slice):
            return self.take(index)
        return Action(
            int(self.stage[index]),
            Kind(int(self.kind[index])),
            _unpack(self.microbatch[index]),
            int(self.span[index]),
            _unpack(self.version[index]),
            int(self.pipe[index]),
            _unpack(self.edge[index]),
            _unpack(self.segment[index]),
        )

    def __iter__(self) -> Iterator[Action]:
        columns = (getattr(self, name).tolist() for name in COLUMNS[:-1])  # all at once is faster
        for stage, kind, microbatch, span, version, pipe, edge, segment in zip(
            *columns, strict=True
        ):
            yield Action(
                stage,
                _KINDS[kind],
                None if microbatch < 0 else microbatch,
                span,
                None if version < 0 else version,
                pipe,
                None if edge < 0 else edge,
                None if segment < 0 else segment,
            )

    def slots(self) -> Iterator[Action | Pair]:
        """Single actions and pairs, as `collect` takes them."""
        waiting: Action | None = None
        for action, is_joined in zip(self, self.joined.tolist(), strict=True):
            if waiting is not None:
                yield Pair(waiting, action) if is_joined else waiting
            waiting = None if waiting is not None and is_joined else action
        if waiting is not None:
            yield waiting

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Actions) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in COLUMNS
        )

    __hash__ = None  # type: ignore[assignment]


COLUMNS = tuple(field.name for field in fields(Actions))
_KINDS = {int(kind): kind for kind in Kind}

_DEFAULTS: dict[str, ArrayLike] = {
    "span": 1,
    "version": -1,
    "pipe": 0,
    "edge": -1,
    "segment": -1,
    "joined": 0,
}


def _packed(action: object) -> list[int]:
    if not (isinstance(action, Action) and isinstance(action.kind, Kind)):
        form = "one reads Action(2, Kind.F, 13): stage, kind, microbatch"
        raise InputError(f"{action!r} is not an action; {form}")
    return [-1 if value is None else value for value in action]


def _unpack(value: np.int32) -> int | None:
    return None if value < 0 else int(value)

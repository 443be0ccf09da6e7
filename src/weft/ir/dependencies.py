"""Dependencies: who reads whose values, in columns, and what nobody computes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.ir.actions import Index


class Value(IntEnum):
    """What passes from a producer to a consumer."""

    ACTIVATION = 0
    GRADIENT = 1
    SAVED = 2
    DEFERRED = 3  # what I leaves for W
    MESSAGE = 4
    HOST_COPY = 5
    WEIGHT_GRADIENT = 6
    WEIGHTS = 7
    SEGMENT = 8  # from one segment of a stage to the next
    NORM = 9  # of the gradients of several stages, which their updates share
    TOKENS = 10  # what another pipe of an expert group has to have, to exchange tokens


class Missing(NamedTuple):
    """Values that are read and that nothing computes: `consumer` wants it of `stage`."""

    consumer: Index
    value: NDArray[np.int8]
    stage: Index
    microbatch: Index


@dataclass(frozen=True)
class Dependencies:
    """Consumer i reads value i from producer i; `edge` is set where it crosses stages."""

    consumer: Index
    producer: Index
    value: NDArray[np.int8]
    edge: Index
    missing: Missing

    def __len__(self) -> int:
        return len(self.consumer)

    def with_more(self, other: Dependencies) -> Dependencies:
        """These, and others of the same actions."""
        return Dependencies(
            np.concatenate([self.consumer, other.consumer]),
            np.concatenate([self.producer, other.producer]),
            np.concatenate([self.value, other.value]),
            np.concatenate([self.edge, other.edge]),
            missing=self.missing,
        )

    @cached_property
    def _by_consumer(self) -> tuple[Index, Index]:
        order = np.argsort(self.consumer, kind="stable")
        return order, self.consumer[order]

    def read_by(self, action: int) -> list[tuple[int, Value]]:
        """Producers and values that this action reads."""
        order, keys = self._by_consumer
        rows = order[np.searchsorted(keys, action) : np.searchsorted(keys, action, "right")]
        return [(int(self.producer[row]), Value(int(self.value[row]))) for row in rows]


def without_repeats(dependencies: Dependencies) -> Dependencies:
    """An action that spans several microbatches reads each of its producers once."""
    value = dependencies.value.astype(np.int64)
    columns = (dependencies.consumer, dependencies.producer, value, dependencies.edge)
    _, kept = np.unique(np.stack(columns), axis=1, return_index=True)
    consumer, producer, value, edge = (column[np.sort(kept)] for column in columns)
    return Dependencies(
        consumer, producer, value.astype(np.int8), edge, missing=dependencies.missing
    )


class Found:
    """Collects dependencies, column by column."""

    def __init__(self) -> None:
        self._rows: list[tuple[Index, Index, NDArray[np.int8], Index]] = []
        self._missing: list[Missing] = []

    def grid(
        self, value: Value, consumers: Index, producers: Index, stages: Index, edges: Index
    ) -> None:
        """Cell by cell: a present consumer reads the producer in the same cell."""
        row, microbatch = np.nonzero(consumers >= 0)
        consumer, producer = consumers[row, microbatch], producers[row, microbatch]
        lost = producer < 0
        if lost.any():
            kinds = np.full(int(lost.sum()), value, np.int8)
            self._missing.append(
                Missing(consumer[lost], kinds, stages[row[lost]], microbatch[lost])
            )
        kept = ~lost
        self.add(value, consumer[kept], producer[kept], edges[row[kept]])

    def add(self, value: Value, consumer: Index, producer: Index, edge: Index | int = -1) -> None:
        values = np.full(len(consumer), value, np.int8)
        edges = np.broadcast_to(np.asarray(edge, np.int64), consumer.shape)
        self._rows.append((consumer, producer, values, edges))

    def dependencies(self) -> Dependencies:
        none = np.empty(0, np.int64)
        rows = [*self._rows, (none, none, none.astype(np.int8), none)]
        lost = [*self._missing, Missing(none, none.astype(np.int8), none, none)]
        consumer, producer, value, edge = (np.concatenate(c) for c in zip(*rows, strict=True))
        return Dependencies(
            consumer=consumer,
            producer=producer,
            value=value.astype(np.int8),
            edge=edge,
            missing=Missing(*(np.concatenate(c) for c in zip(*lost, strict=True))),
        )

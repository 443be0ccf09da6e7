"""What every action reads and writes, said once.

    action            reads                                              writes
    F                 activation of each predecessor, its weights        activation, saved state
    R                 stored input (F)                                   saved state
    B, I              saved state (F or R), gradient of each successor   gradient; I: what W needs
    W                 what I left                                        weight gradient
    SEND ACTIVATION   activation                                         message
    RECV ACTIVATION   message                                            activation, on its device
    SEND/RECV GRADIENT  the same for gradients, against the edge
    OFFLOAD           saved state (F)                                    host copy
    ONLOAD            host copy                                          saved state
    REDUCE            weight gradients of its version, of every pipe     summed gradient
    UPDATE            weight gradients or their sum, the version before  the next version
    FREE              every use of its version                           -

With a receive on an edge, its reader reads the receive; without, the producer itself. An action
that spans several microbatches reads, of each neighbour, whatever covers them. Segments of a
stage run in forward order for F and R, in backward order for B and I.

Verifier, simulator, lowering, memory, arrows and runtime all ask here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.ir.actions import Actions, Index
from weft.ir.graph import Backward, Graph
from weft.ir.kinds import Kind
from weft.ir.tables import Groups, Tables


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

    @cached_property
    def _by_consumer(self) -> tuple[Index, Index]:
        order = np.argsort(self.consumer, kind="stable")
        return order, self.consumer[order]

    def read_by(self, action: int) -> list[tuple[int, Value]]:
        """Producers and values that this action reads."""
        order, keys = self._by_consumer
        rows = order[np.searchsorted(keys, action) : np.searchsorted(keys, action, "right")]
        return [(int(self.producer[row]), Value(int(self.value[row]))) for row in rows]


def resolve(
    graph: Graph,
    actions: Actions,
    *,
    microbatches: int,
    step: int,
    pipe_of: Sequence[int],
) -> Dependencies:
    """Every (consumer, producer) of these actions, by the table above."""
    tables = Tables(actions, stages=len(graph), edges=len(graph.edges), microbatches=microbatches)
    found = _Found()
    _across_stages(graph, tables, found)
    _within_stages(graph, tables, found)
    if tables.has_wires:
        _along_wires(graph, tables, found)
    if tables.has_segments:
        _between_segments(actions, found)
    if tables.has_updates:
        _through_weights(actions, found, step=step, pipe_of=np.asarray(pipe_of))
    dependencies = found.dependencies()
    return dependencies if (actions.span == 1).all() else _without_repeats(dependencies)


def _without_repeats(dependencies: Dependencies) -> Dependencies:
    """An action that spans several microbatches reads each of its producers once."""
    value = dependencies.value.astype(np.int64)
    columns = (dependencies.consumer, dependencies.producer, value, dependencies.edge)
    _, kept = np.unique(np.stack(columns), axis=1, return_index=True)
    consumer, producer, value, edge = (column[np.sort(kept)] for column in columns)
    return Dependencies(
        consumer, producer, value.astype(np.int8), edge, missing=dependencies.missing
    )


class _Found:
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


def _across_stages(graph: Graph, tables: Tables, found: _Found) -> None:
    """Activations along the edges, gradients against them."""
    if not graph.edges:
        return
    source, destination = np.array(graph.edges).T
    every = np.arange(len(graph.edges))
    arrived = tables.out_of(Kind.RECV_ACTIVATION)
    produced = np.where(arrived >= 0, arrived, tables.out_of(Kind.F)[source])
    found.grid(Value.ACTIVATION, tables.into(Kind.F)[destination], produced, source, every)

    flows = np.array([graph.stages[s].backward is not Backward.NONE for s in destination])
    arrived = tables.out_of(Kind.RECV_GRADIENT)
    produced = np.where(arrived >= 0, arrived, tables.out_of(Kind.B, Kind.I)[destination])
    consumers = tables.into(Kind.B, Kind.I)[source]
    found.grid(Value.GRADIENT, consumers[flows], produced[flows], destination[flows], every[flows])


def _within_stages(graph: Graph, tables: Tables, found: _Found) -> None:
    """Saved state from F (through the host, or made again by R) to B or I; from I to W."""
    stages = np.arange(len(graph))
    nowhere = np.full(len(graph), -1)
    saved = tables.out_of(Kind.F)
    if tables.has(Kind.OFFLOAD) or tables.has(Kind.ONLOAD):
        offloads, onloads = tables.out_of(Kind.OFFLOAD), tables.out_of(Kind.ONLOAD)
        found.grid(Value.SAVED, offloads, saved, stages, nowhere)
        found.grid(Value.HOST_COPY, onloads, offloads, stages, nowhere)
        saved = np.where(onloads >= 0, onloads, saved)
    if tables.has(Kind.R):
        found.grid(Value.SAVED, tables.into(Kind.R), saved, stages, nowhere)
        again = tables.out_of(Kind.R)
        saved = np.where(again >= 0, again, saved)
    found.grid(Value.SAVED, tables.into(Kind.B, Kind.I), saved, stages, nowhere)
    if tables.has(Kind.W):
        weights = tables.into(Kind.W)
        whole = np.where(tables.actions.segment[weights] < 0, weights, -1)
        found.grid(Value.DEFERRED, whole, tables.out_of(Kind.B, Kind.I), stages, nowhere)


def _along_wires(graph: Graph, tables: Tables, found: _Found) -> None:
    """Producer -> send -> receive; who reads a receive is said in `_across_stages`."""
    if not graph.edges:
        return
    source, destination = np.array(graph.edges).T
    every = np.arange(len(graph.edges))
    for value, send, receive, producers, stages in (
        (
            Value.ACTIVATION,
            Kind.SEND_ACTIVATION,
            Kind.RECV_ACTIVATION,
            tables.out_of(Kind.F)[source],
            source,
        ),
        (
            Value.GRADIENT,
            Kind.SEND_GRADIENT,
            Kind.RECV_GRADIENT,
            tables.out_of(Kind.B, Kind.I)[destination],
            destination,
        ),
    ):
        sends = tables.out_of(send)
        found.grid(value, sends, producers, stages, every)
        found.grid(Value.MESSAGE, tables.out_of(receive), sends, stages, every)


def _between_segments(actions: Actions, found: _Found) -> None:
    """Segment i of F and R reads i - 1, of B and I reads i + 1; of W its own I."""
    rows = np.flatnonzero(actions.segment >= 0)
    keys = (actions.segment, actions.microbatch, actions.stage, actions.kind)
    rows = rows[np.lexsort([key[rows] for key in keys])]
    before, after = rows[:-1], rows[1:]
    same = np.all([key[before] == key[after] for key in keys[1:]], axis=0)
    before, after = before[same], after[same]
    downstream = np.isin(actions.kind[before], (Kind.F, Kind.R))
    upstream = np.isin(actions.kind[before], (Kind.B, Kind.I))
    found.add(Value.SEGMENT, after[downstream], before[downstream])
    found.add(Value.SEGMENT, before[upstream], after[upstream])
    inputs, weights = rows[actions.kind[rows] == Kind.I], rows[actions.kind[rows] == Kind.W]
    cell = (actions.stage.astype(np.int64) << 40) + (actions.microbatch.astype(np.int64) << 12)
    cell += actions.segment
    own = Groups(inputs, cell[inputs]).join(weights, cell[weights])
    found.add(Value.DEFERRED, *own)


def _through_weights(
    actions: Actions, found: _Found, *, step: int, pipe_of: NDArray[np.int64]
) -> None:
    """Gradients of step t enter update t; what uses version v waits for update v - 1."""
    rows = np.arange(len(actions))
    is_use = actions.kind <= Kind.R
    updates, reduces, frees = (
        rows[actions.kind == kind] for kind in (Kind.UPDATE, Kind.REDUCE, Kind.FREE)
    )
    pipes = int(pipe_of.max()) + 1
    versions = np.maximum(actions.version, 0)
    holder = actions.stage.astype(np.int64) * pipes + actions.pipe
    span = int(versions.max(initial=0)) + int(actions.microbatch.max(initial=0)) // step + 2
    by_version, by_step = holder * span + versions, actions.microbatch // step

    writers = Groups(updates, by_version[updates] + 1)
    readers = np.concatenate([rows[is_use & (actions.version > 0)], updates])
    found.add(Value.WEIGHTS, *writers.join(readers, by_version[readers]))

    ends = rows[np.isin(actions.kind, (Kind.B, Kind.W))]
    of_pipe = Groups(ends, holder[ends] * span + by_step[ends])
    of_stage = Groups(ends, actions.stage[ends].astype(np.int64) * span + by_step[ends])
    sums = Groups(reduces, by_version[reduces])
    summed = sums.join(updates, by_version[updates])
    found.add(Value.WEIGHT_GRADIENT, *summed)
    alone = np.setdiff1d(updates, summed[0])
    found.add(Value.WEIGHT_GRADIENT, *of_pipe.join(alone, by_version[alone]))
    key = actions.stage[reduces].astype(np.int64) * span + versions[reduces]
    found.add(Value.WEIGHT_GRADIENT, *of_stage.join(reduces, key))

    users = rows[is_use]
    found.add(Value.WEIGHTS, *Groups(users, by_version[users]).join(frees, by_version[frees]))

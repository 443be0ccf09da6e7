"""What every action reads and writes, said once.

    action            reads                                              writes
    F                 activation of each predecessor, its weights        activation, saved state
    R                 stored input (F)                                   saved state
    B, I              saved state (F or R), gradient of each successor   gradient; I: what W needs
                      along an edge that is not fixed
    W                 what I left                                        weight gradient
    SEND ACTIVATION   activation                                         message
    RECV ACTIVATION   message                                            activation, on its device
    SEND/RECV GRADIENT  the same for gradients, against the edge
    OFFLOAD           saved state (F), of its segment if it names one    host copy
    ONLOAD            host copy, of the same                             saved state
    REDUCE            weight gradients of its version, of every pipe     summed gradient
    UPDATE            weight gradients or their sum, the version before,
                      the norm of its group                              the next version
    GATHER            updates of its version, of every pipe              the next version, whole
    FREE              every use of its version                           -

    of a tied weight
    REDUCE~j          weight gradients of all its ends, each summed over the pipes
    UPDATE~j          REDUCE~j, its version before, the norm of its home's group
    GATHER~j          UPDATE~j of every pipe, at its stage
    F, R, B, I, W     also UPDATE~j at their stage, of the version that the home's F uses

    where copies of a stage share the work of an update
    what reads an UPDATE     reads the GATHER of its pipe instead

    where pipes exchange tokens
    F, R, B, I        also all that the same action of the other pipes reads: of a stage that is
                      cut into segments, dispatch and combine alone

With a receive on an edge, its reader reads the receive; without, the producer itself. An action
that spans several microbatches reads, of each neighbour, whatever covers them. Segments of a
stage run in forward order for F and R, in backward order for B and I.

Verifier, simulator, lowering, memory, arrows and runtime all ask here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.ir.actions import Actions, Index
from weft.ir.dependencies import Dependencies, Found, Missing, Value, without_repeats
from weft.ir.expert_groups import PipeGroups, with_tokens
from weft.ir.graph import Graph
from weft.ir.kinds import Kind
from weft.ir.tables import Groups, Tables
from weft.ir.weights import Sharing, Weights

__all__ = ["Dependencies", "Missing", "Sharing", "Value", "resolve"]

# What actions of one segment read of others of the same, and of which kind these are.
_WITHIN_SEGMENTS = (
    (Value.DEFERRED, (Kind.W,), Kind.I),
    (Value.SAVED, (Kind.OFFLOAD,), Kind.F),
    (Value.HOST_COPY, (Kind.ONLOAD,), Kind.OFFLOAD),
    (Value.SAVED, (Kind.R, Kind.B, Kind.I), Kind.ONLOAD),
)


def resolve(
    graph: Graph,
    actions: Actions,
    *,
    microbatches: int,
    step: int,
    pipe_of: Sequence[int],
    sharing: Sharing,
    expert_groups: PipeGroups = (),
) -> Dependencies:
    """Every (consumer, producer) of these actions, by the table above."""
    tables = Tables(actions, stages=len(graph), edges=len(graph.edges), microbatches=microbatches)
    found = Found()
    _across_stages(graph, tables, found)
    _within_stages(graph, tables, found)
    if tables.has_wires:
        _along_wires(graph, tables, found)
    if tables.has_segments:
        _between_segments(actions, found)
    if tables.has_updates:
        pipes = max(*pipe_of, int(actions.pipe.max(initial=0))) + 1
        measured = expert_groups[0] if expert_groups else (0,)
        weights = Weights(graph, tables, step=step, pipes=pipes, sharing=sharing, measured=measured)
        weights.resolve(found)
    dependencies = found.dependencies()
    if expert_groups:
        dependencies = with_tokens(dependencies, actions, expert_groups, pipe_of)
    return dependencies if (actions.span == 1).all() else without_repeats(dependencies)


def _across_stages(graph: Graph, tables: Tables, found: Found) -> None:
    """Activations along the edges, gradients against them."""
    if not graph.edges:
        return
    source, destination = np.array(graph.edges).T
    every = np.arange(len(graph.edges))
    arrived = tables.out_of(Kind.RECV_ACTIVATION)
    produced = np.where(arrived >= 0, arrived, tables.out_of(Kind.F)[source])
    found.grid(Value.ACTIVATION, tables.into(Kind.F)[destination], produced, source, every)

    is_returned = np.array(graph.is_returned)
    arrived = tables.out_of(Kind.RECV_GRADIENT)
    produced = np.where(arrived >= 0, arrived, tables.out_of(Kind.B, Kind.I)[destination])
    consumers = tables.into(Kind.B, Kind.I)[source]
    found.grid(
        Value.GRADIENT,
        consumers[is_returned],
        produced[is_returned],
        destination[is_returned],
        every[is_returned],
    )


def _within_stages(graph: Graph, tables: Tables, found: Found) -> None:
    """Saved state from F (through the host, or made again by R) to B or I; from I to W."""
    stages = np.arange(len(graph))
    nowhere = np.full(len(graph), -1)
    saved = tables.out_of(Kind.F)
    if tables.has(Kind.OFFLOAD) or tables.has(Kind.ONLOAD):
        offloads, onloads = _of_whole_stages(tables, Kind.OFFLOAD, Kind.ONLOAD)
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


def _of_whole_stages(tables: Tables, *kinds: Kind) -> list[Index]:
    """Which action of each kind covers a cell, but for those of one segment."""
    segment = tables.actions.segment
    return [np.where(segment[t] < 0, t, -1) for t in map(tables.out_of, kinds)]


def _along_wires(graph: Graph, tables: Tables, found: Found) -> None:
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


def _between_segments(actions: Actions, found: Found) -> None:
    """Segment i of F and R reads i - 1, of B and I reads i + 1; the rest reads its own segment."""
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
    cell = (actions.stage.astype(np.int64) << 40) + (actions.microbatch.astype(np.int64) << 12)
    cell += actions.segment
    for value, readers, read in _WITHIN_SEGMENTS:
        producers = rows[actions.kind[rows] == read]
        consumers = rows[np.isin(actions.kind[rows], readers)]
        found.add(value, *Groups(producers, cell[producers]).join(consumers, cell[consumers]))

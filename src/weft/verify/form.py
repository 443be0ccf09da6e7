"""Well-formed: every action can be read by itself and stands where its kind may stand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.ir.kinds import EDGE_END, Direction, Kind, Stream
from weft.ir.lanes import Lane
from weft.ir.program import Program
from weft.lower.wires import ENDS
from weft.verify.context import Breach, Context

Mask: TypeAlias = NDArray[np.bool_]
Defects: TypeAlias = Iterator[tuple[Mask, str]]

_COMPUTE = frozenset({Kind.F, Kind.B, Kind.I, Kind.W, Kind.R})

_HELD = {
    Stream.COMPUTE: _COMPUTE | {Kind.UPDATE, Kind.FREE},
    Stream.EXPERTS: _COMPUTE,
    Stream.OFFLOAD: frozenset({Kind.OFFLOAD}),
    Stream.ONLOAD: frozenset({Kind.ONLOAD}),
    Stream.REDUCE: frozenset({Kind.REDUCE, Kind.GATHER}),
}


def well_formed(context: Context) -> Iterator[Breach]:
    """Fields first; what they mean together only where each makes sense alone."""
    for check in (_unknown_kinds, _fields, _relations):
        found = list(_at_each(context, check(context.program)))
        yield from found
        if found:
            return


def _at_each(context: Context, defects: Defects) -> Iterator[Breach]:
    for mask, text in defects:
        for row in np.flatnonzero(mask).tolist():
            device = int(context.program.device_of[row])
            action = _word(context, row)
            yield Breach(
                device, action, f"{context.title}: device {device} lists {action}, {text}.", row
            )


def _word(context: Context, row: int) -> str:
    kind = int(context.program.actions.kind[row])
    return context.token(row) if 0 <= kind < len(Kind) else f"an action of kind {kind}"


def _unknown_kinds(program: Program) -> Defects:
    kind = program.actions.kind
    yield (kind < 0) | (kind >= len(Kind)), f"and kinds are numbered 0 to {len(Kind) - 1}"


def _fields(program: Program) -> Defects:
    actions, graph = program.actions, program.graph
    has_microbatch = actions.kind <= Kind.ONLOAD
    is_wire = np.isin(actions.kind, list(EDGE_END))
    pipes = len(program.placement.pipes)

    stage = actions.stage
    yield (stage < 0) | (stage >= len(graph)), f"but stages are numbered 0 to {len(graph) - 1}"
    yield has_microbatch & (actions.microbatch < 0), "which needs a microbatch"
    yield ~has_microbatch & (actions.microbatch >= 0), "which belongs to a version: drop microbatch"
    yield actions.span < 1, "but a span covers at least 1 microbatch"
    yield ~has_microbatch & (actions.version < 0), "which needs a version: @0 for the first"
    yield (actions.pipe < 0) | (actions.pipe >= pipes), f"but pipes are numbered 0 to {pipes - 1}"
    has_edge = (actions.edge >= 0) & (actions.edge < len(graph.edges))
    yield is_wire & ~has_edge, f"but edges are numbered 0 to {len(graph.edges) - 1}"
    has_tie = np.isin(actions.kind, (Kind.REDUCE, Kind.UPDATE, Kind.GATHER))
    yield ~is_wire & ~has_tie & (actions.edge >= 0), "but only sends and receives name an edge"
    yield has_tie & _misses_its_tie(program), "but its stage has no end of that tied weight"
    is_cut = (actions.kind <= Kind.R) | np.isin(actions.kind, (Kind.OFFLOAD, Kind.ONLOAD))
    yield ~is_cut & (actions.segment >= 0), "but only computations and copies have segments"
    yield has_microbatch & _is_stray(program), _stray_text(program)


def _is_stray(program: Program) -> Mask:
    last = program.actions.microbatch.astype(np.int64) + program.actions.span
    return np.asarray(last > program.microbatches * _steps(program))


def _stray_text(program: Program) -> str:
    last = program.microbatches * _steps(program) - 1
    return f"but microbatches are numbered 0 to {last}: correct its microbatch"


def _steps(program: Program) -> int:
    """Steps that are meant: of the last, most forwards are there, as of those before it."""
    actions = program.actions
    forward = (actions.kind == Kind.F) & (actions.microbatch >= 0)
    step = actions.microbatch[forward].astype(np.int64) // program.microbatches
    step, where = np.unique(step, return_inverse=True)
    covered = np.bincount(where, weights=np.minimum(actions.span[forward], program.microbatches))
    half = program.microbatches * program.stages / 2
    is_meant = (covered > half) & ((step + 1) * half <= covered.sum())
    return int(step[is_meant].max(initial=0)) + 1


def _relations(program: Program) -> Defects:
    actions = program.actions
    first, last = actions.microbatch, actions.microbatch + actions.span - 1
    yield (
        (first >= 0) & (first // program.microbatches != last // program.microbatches),
        "which spans microbatches of two steps: cut it at the step",
    )
    yield _spans_pipes(program), "which spans microbatches of several pipes: cut it there"
    yield _misses_its_edge(program), "but its edge has another end: correct its stage"
    held = np.array([[kind in kinds for kind in Kind] for kinds in map(_held, program.lanes)])
    yield (
        ~held[program.lane_of, actions.kind],
        "but its lane holds no action of that kind: move it to the lane of its stream and channel",
    )
    yield _is_bad_pair(program), "but a pair is two computations side by side on one compute lane"


def _held(lane: Lane) -> frozenset[Kind]:
    """The kinds that a lane may hold; a wire lane those of its end of its channel, or all."""
    if lane.stream is not Stream.WIRE:
        return _HELD[lane.stream] if lane.channel is None else frozenset()
    if lane.channel is None:
        return frozenset(kind for ends in ENDS.values() for kind in ends)
    source, destination, direction = lane.channel
    carried = ENDS.values() if direction is Direction.BOTH else [ENDS[direction]]
    return frozenset(
        kind
        for ends in carried
        for kind, device in zip(ends, (source, destination), strict=True)
        if device == lane.device
    )


def _spans_pipes(program: Program) -> Mask:
    if len(program.placement.pipes) == 1:
        return np.zeros(len(program), np.bool_)
    actions, step = program.actions, program.microbatches
    changes = np.concatenate([[0], np.cumsum(np.diff(program.pipe_of) != 0)])
    last = actions.microbatch + actions.span - 1
    differs = changes[last % step] != changes[actions.microbatch % step]
    return np.asarray((actions.microbatch >= 0) & differs)


def _misses_its_edge(program: Program) -> Mask:
    actions = program.actions
    if not program.graph.edges:
        return np.zeros(len(program), np.bool_)
    ends = np.array(program.graph.edges)
    misses = np.zeros(len(program), np.bool_)
    for kind, end in EDGE_END.items():
        rows = np.flatnonzero(actions.kind == kind)
        misses[rows] = ends[actions.edge[rows], end] != actions.stage[rows]
    return misses


def _misses_its_tie(program: Program) -> Mask:
    actions, ties = program.actions, program.ties
    misses = actions.edge >= len(ties)
    for tie, ends in enumerate(ties):
        misses |= (actions.edge == tie) & ~np.isin(actions.stage, ends)
    return misses


def _is_bad_pair(program: Program) -> Mask:
    actions = program.actions
    joined = actions.joined != 0
    is_first, is_third = np.zeros_like(joined), np.zeros_like(joined)
    is_first[:-1], is_third[1:] = joined[1:], joined[:-1]
    on_compute = program.is_on_compute[program.lane_of] & (actions.kind <= Kind.R)
    opens_lane = np.isin(np.arange(len(program)), program.bounds[:-1])
    is_lone = joined & (opens_lane | is_third)
    return np.asarray(is_lone | ((joined | is_first) & ~on_compute))

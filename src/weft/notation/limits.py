"""Limits: what a file may ask for, so that reading one cannot exhaust memory.

Actions must name stages, edges and pipes that exist. Whether they make sense is verification's
to say: a forward that is missing or stands in the wrong place is readable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.ir.actions import Actions
from weft.ir.graph import Graph
from weft.ir.kinds import EDGE_END, Kind
from weft.ir.lanes import Lane
from weft.ir.placement import Placement
from weft.ir.weights import Sharing
from weft.notation.tokens import OF_TIES, written

MOST = 999_999_999  # any one number
MOST_BYTES = 64 << 20  # of a file
MOST_LINES = 1_000_000  # of a text or a table
MOST_WORDS = 4_000_000  # of a text, or cells of a table
MOST_VALUES = 8_000_000  # of a JSON text
MOST_MEMBERS = 1_000_000  # objects, lists and keys of a JSON text, which take more memory
MOST_ACTIONS = 2_000_000  # an action counts once for each microbatch it covers
MOST_ABSENT = 100_000  # forwards that a program may lack, each of which verification names
MOST_STAGES = 65_536
MOST_PIPES = 64
MOST_JOINED = 8_000_000  # gradients and updates that tied weights and norms bring together
MOST_REPEATS = 16  # of what `ir.values` joins with all that it reads
MOST_CELLS = 4_000_000  # stages (or edges) x microbatches: the tables of `ir.values`
MOST_SEGMENTS = 4096  # as `ir.values` packs them

Faults: TypeAlias = Iterator[tuple[NDArray[np.bool_], str]]


def check_lines(text: str) -> None:
    """Refuse a text of more lines than Weft reads, before it is cut into them."""
    if text.count("\n") > MOST_LINES:
        raise InputError(f"more than the {MOST_LINES:,} lines that Weft reads")


def check_words(words: int) -> None:
    """Refuse a text of more words than Weft reads."""
    if words > MOST_WORDS:
        raise InputError(f"more than the {MOST_WORDS:,} words or cells that Weft reads")


def check_values(text: str) -> None:
    """Refuse a JSON text of more values than Weft reads, before any of them is made."""
    if text.count(",") > MOST_VALUES:
        raise InputError(f"more than the {MOST_VALUES:,} values that Weft reads")
    if sum(map(text.count, "{[:")) > MOST_MEMBERS:
        raise InputError(f"more than the {MOST_MEMBERS:,} objects, lists and keys that Weft reads")


def check_stages(stages: int) -> None:
    """Refuse a graph of more stages than Weft reads."""
    if stages > MOST_STAGES:
        raise InputError(f"{stages:,} stages; Weft reads at most {MOST_STAGES:,}")


def check_cells(graph: Graph, microbatches: int) -> None:
    """Refuse a graph and microbatches whose tables would not fit in memory."""
    if max(len(graph), len(graph.edges)) * microbatches > MOST_CELLS:
        raise InputError(
            f"{microbatches:,} microbatches for {len(graph):,} stages and"
            f" {len(graph.edges):,} edges; Weft reads at most {MOST_CELLS:,} stages (or edges)"
            " x microbatches"
        )


def check_pipes(pipes: int) -> None:
    """Refuse a placement of more pipes than Weft reads."""
    if pipes > MOST_PIPES:
        raise InputError(f"{pipes:,} pipes; Weft reads at most {MOST_PIPES}")


def check_total(actions: int) -> None:
    """Refuse more actions than a program may list."""
    if actions > MOST_ACTIONS:
        raise InputError(f"more than the {MOST_ACTIONS:,} actions that Weft reads")


def check_forwards(actions: Actions, stages: int, microbatches: int) -> None:
    """Refuse a program that lacks nearly all of what its first lines speak of."""
    listed = int(actions.span[actions.kind == Kind.F].sum(dtype=np.int64))
    if stages * microbatches - listed > MOST_ABSENT:
        raise InputError(
            f"{listed:,} forwards of the {stages * microbatches:,} that {stages:,} stages and"
            f" {microbatches:,} microbatches need; is the file cut off?"
        )


def check_lane(lane: Lane, placement: Placement) -> None:
    """Refuse a lane or channel of a device that holds no stage."""
    named = [lane.device]
    if lane.channel is not None:
        named += [lane.channel.source, lane.channel.destination]
    for device in named:
        if device >= placement.devices:
            raise InputError(
                f"device {device}: the placement uses devices 0 to {placement.devices - 1}"
            )


def check_actions(actions: Actions, graph: Graph, placement: Placement, microbatches: int) -> None:
    """Refuse the first action of a lane that names what does not exist."""
    for faults in (_of_names(actions, graph, placement), _of_extent(actions, graph, microbatches)):
        for is_bad, reason in faults:
            if is_bad.any():
                row = int(is_bad.argmax())
                word = written(actions.take([row]), graph.edges)[0]
                raise InputError(f"{word}, action {row} of its lane: {reason}")


def check_repeats(actions: Actions) -> None:
    """Refuse many copies of an action that reads many: what is read grows with their product."""
    stage, kind = actions.stage.astype(np.int64), actions.kind.astype(np.int64)
    is_weight = kind >= Kind.REDUCE
    is_part = (actions.segment >= 0) & np.isin(kind, (Kind.I, Kind.W))
    holder = (stage << 6 | actions.pipe) << 30 | (np.maximum(actions.edge, -1) + 1)
    _, holder = np.unique(holder, return_inverse=True)  # small, so that no product overflows
    weights = (holder << 30 | np.maximum(actions.version, 0)) << 4 | kind
    parts = ((stage << 30 | actions.microbatch) << 12 | actions.segment) << 1 | (kind == Kind.W)
    for is_such, keys in ((is_weight, weights), (is_part, parts)):
        repeats = int(is_such.sum()) - len(np.unique(keys[is_such]))
        if repeats > MOST_REPEATS:
            raise InputError(
                f"{repeats:,} updates, reductions, gathers, releases or parts of layers stand more"
                f" than once; Weft reads at most {MOST_REPEATS} such repetitions"
            )


def check_ties(actions: Actions, ties: Sequence[Sequence[int]]) -> None:
    """Refuse a sum or update that names a tied weight which its stage does not have."""
    is_of_tie = np.isin(actions.kind, OF_TIES) & (actions.edge >= 0)
    named = actions.take(np.flatnonzero(is_of_tie))
    for row, (stage, tie) in enumerate(zip(named.stage.tolist(), named.edge.tolist(), strict=True)):
        if tie >= len(ties) or stage not in ties[tie]:
            raise InputError(
                f"{written(named.take([row]), ())[0]}: stage {stage} has no end of a tied weight"
                f" {tie}"
            )


def check_sharing(actions: Actions, sharing: Sharing, stages: int) -> None:
    """Refuse tied weights and norms that join more gradients and updates than fit in memory."""
    of_stage = np.bincount(actions.stage, minlength=stages)
    updates = np.bincount(actions.stage[actions.kind == Kind.UPDATE], minlength=stages)
    joined = sum(len(tie) * int(of_stage[list(tie)].sum()) for tie in sharing.ties)
    for norm in sharing.norms:
        wider = {stage for tie in sharing.ties if tie[0] in norm for stage in tie}
        joined += (len(norm) + len(sharing.ties)) * int(updates[sorted({*norm, *wider})].sum())
    if joined > MOST_JOINED:
        raise InputError(
            f"tied weights and norms join {joined:,} gradients and updates; Weft reads at most"
            f" {MOST_JOINED:,}"
        )


def check_exchanges(actions: Actions, groups: Sequence[Sequence[int]]) -> None:
    """Refuse expert groups that join more actions than fit in memory."""
    joined = len(actions) * max(map(len, groups), default=0)
    if joined > MOST_JOINED:
        raise InputError(
            f"expert groups join {joined:,} actions; Weft reads at most {MOST_JOINED:,}"
        )


def _of_names(actions: Actions, graph: Graph, placement: Placement) -> Faults:
    stages, edges, pipes = len(graph), len(graph.edges), len(placement.pipes)
    is_wire = (actions.kind >= Kind.SEND_ACTIVATION) & (actions.kind <= Kind.RECV_GRADIENT)
    yield _outside(actions.stage, stages), f"stages are 0 to {stages - 1}"
    yield _outside(actions.pipe, pipes), f"pipes are 0 to {pipes - 1}"
    yield is_wire & _outside(actions.edge, edges), f"the graph has {edges} edges"
    has_tie = np.isin(actions.kind, OF_TIES)
    yield ~is_wire & ~has_tie & (actions.edge >= 0), "only a send or a receive names an edge"
    wires = np.flatnonzero(is_wire)
    named = zip(actions.edge[wires].tolist(), actions.kind[wires].tolist(), strict=True)
    is_astray = np.zeros(len(actions), np.bool_)
    is_astray[wires] = actions.stage[wires] != [
        graph.edges[edge][EDGE_END[kind]] for edge, kind in named
    ]
    yield is_astray, "a send or receive stands at an end of its edge"


def _of_extent(actions: Actions, graph: Graph, microbatches: int) -> Faults:
    has_microbatch = actions.kind <= Kind.ONLOAD
    yield has_microbatch & (actions.microbatch < 0), "it names no microbatch"
    yield ~has_microbatch & (actions.microbatch >= 0), "it belongs to no microbatch"
    yield actions.span < 1, "it covers no microbatch"
    yield ~has_microbatch & (actions.span != 1), "it covers no microbatches"
    yield actions.segment >= MOST_SEGMENTS, f"a stage has at most {MOST_SEGMENTS} segments"
    is_second = actions.joined > 0
    yield actions.joined > 1, "`joined` is 0 or 1"
    has_no_first = np.concatenate([[True], is_second[:-1]])[: len(actions)]
    yield is_second & has_no_first, "a pair joins an action to the one before it, and only two"
    last = actions.microbatch.astype(np.int64) + actions.span
    cells = -(-last // microbatches) * microbatches * max(len(graph), len(graph.edges))
    yield (
        cells > MOST_CELLS,
        (
            f"so far beyond the {microbatches} microbatches of a step, a program has more than the"
            f" {MOST_CELLS:,} stages (or edges) x microbatches that Weft reads"
        ),
    )


def _outside(column: NDArray[np.int32], count: int) -> NDArray[np.bool_]:
    return (column < 0) | (column >= count)

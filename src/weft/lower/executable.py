"""Executable: the program that ranks walk, from any verified program.

    1f1b, device 1      F0 B0 F1 B1

    compute             F0 B0 F1 B1 UPDATE
    wire 0 -> 1         R0    R1
    wire 1 -> 0               S0    S1
    reduce                          REDUCE~0      where a weight is tied, or a stage has copies
    reduce                                 GATHER where each copy updates its share

What is simulated, drawn, verified and recorded is this program, action by action.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from weft.errors import InputError
from weft.ir.actions import Actions, Index
from weft.ir.kinds import Kind, Stream
from weft.ir.lanes import Lane
from weft.ir.program import Program
from weft.ir.weights import Sharing, StageGroups
from weft.lower.pairs import unpaired
from weft.lower.periods import period_of, taking
from weft.lower.sums import gathers, sums
from weft.lower.updates import updates
from weft.lower.waiting import in_time
from weft.lower.wires import unwired, wires


def executable(
    program: Program,
    *,
    ties: Sequence[Sequence[int]] = (),
    norms: Sequence[Sequence[int]] = (),
    is_updating: bool = True,
    is_sharded: bool = False,
    is_replicated: bool = False,
) -> Program:
    """The program with all that a device has to do, on its lanes.

    ties           stages that share a weight, its home first; the program's own where none is given
    norms          stages whose updates wait for one norm of their gradients; likewise
    is_updating    False leaves gradients, summed, to whoever asked for them
    is_sharded     where stages have copies, each of them updates its share of the weights, and all
                   gather them; so it is, too, where the program gathers them already
    is_replicated  there are copies of the whole program that it does not show

    Devices run one action after the other: pairs are dissolved. Offload, onload and experts stay
    as they are. A program that updates between its microbatches keeps its updates, moved where
    they have to wait for other devices; any other has them at its end.
    """
    is_sharded = is_updating and (is_sharded or gathers(program))
    shared = _sharing(unpaired(unwired(program)), ties, norms)
    bare = _with_all_lanes(_without_weights(shared, is_updating=is_updating))
    if is_updating:
        bare = in_time(_with_tied_updates(_updated(bare)), is_sharded=is_sharded)
    return wires(sums(bare, is_sharded=is_sharded, is_replicated=is_replicated))


def _sharing(
    program: Program, ties: Sequence[Sequence[int]], norms: Sequence[Sequence[int]]
) -> Program:
    given = Sharing(_groups(ties) or program.ties, _groups(norms) or program.norms)
    return replace(program, **given._asdict())


def _groups(given: Sequence[Sequence[int]]) -> StageGroups:
    return tuple(tuple(group) for group in given)


def _without_weights(program: Program, *, is_updating: bool) -> Program:
    """Without releases, sums and updates of tied weights, which are added anew, or any update."""
    actions = program.actions
    dropped = np.isin(actions.kind, (Kind.FREE, Kind.REDUCE, Kind.GATHER))
    dropped |= (actions.kind == Kind.UPDATE) & ((actions.edge >= 0) | (not is_updating))
    if not is_updating and (actions.version[actions.kind <= Kind.R] > 0).any():
        raise InputError(
            f"{program.name} computes with weights that its own updates make, so it cannot run"
            " without them. Let it update, or use a synchronous schedule"
        )
    kept = [index for index, lane in enumerate(program.lanes) if lane.stream is not Stream.REDUCE]
    is_bare = not dropped.any() and len(kept) == len(program.lanes)
    return program if is_bare else taking(program, ~dropped, kept)


def _with_all_lanes(program: Program) -> Program:
    """A lane for each device; one that holds stages of a pipe without microbatches does nothing."""
    idle = [lane for lane in map(Lane, range(program.devices)) if lane not in program.lanes]
    if not idle:
        return program
    none = (0,) * len(idle)
    period = program.period and replace(
        program.period,
        prologue=program.period.prologue + none,
        body=program.period.body + none,
    )
    lanes = {**program.contents(), **{lane: Actions.collect([]) for lane in idle}}
    return program.with_lanes(lanes, period=period)


def _updated(program: Program) -> Program:
    """With updates, unless it has them; sums are added later, for all programs alike."""
    if (program.actions.kind == Kind.UPDATE).any():
        return program
    return _without_weights(updates(program), is_updating=True)


def _with_tied_updates(program: Program) -> Program:
    """Beside the update of each stage that of its ends of tied weights."""
    actions = program.actions
    rows: list[Index] = [np.arange(len(program))]
    added = [actions]
    for tie, ends in enumerate(program.ties):
        beside = np.flatnonzero((actions.kind == Kind.UPDATE) & np.isin(actions.stage, ends))
        rows.append(beside)
        added.append(actions.take(beside).replace(edge=tie))
    source = np.concatenate(rows)
    order = np.argsort(source, kind="stable")
    lane = program.lane_of[source[order]]
    bounds = np.searchsorted(lane, np.arange(len(program.lanes) + 1))
    merged = Actions.concatenate(added).take(order)
    lanes = {
        name: merged[int(bounds[index]) : int(bounds[index + 1])]
        for index, name in enumerate(program.lanes)
    }
    period = period_of(program, source=source[order], lane=lane, lanes=len(program.lanes))
    return program.with_lanes(lanes, period=period)

"""What must be there, once, in its place: complete, produced, drained, placed, offloaded.

A missing action is reported by one rule only:

    produced   somebody waits for what it would compute
    drained    it would end what another action began: the backward of an F, the W of an I
    complete   neither
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.ir.actions import Index
from weft.ir.graph import Backward
from weft.ir.kinds import EDGE_END, Kind
from weft.ir.lanes import Lane
from weft.ir.values import Value
from weft.lower.wires import ENDS
from weft.verify.context import Breach, Context

_NAMES = {
    Value.ACTIVATION: "the activation",
    Value.GRADIENT: "the gradient",
    Value.SAVED: "the saved state",
    Value.DEFERRED: "the input gradient",
}


def complete(context: Context) -> Iterator[Breach]:
    """Each action of each microbatch exactly once."""
    yield from _repeated(context)
    yield from _frozen(context)
    yield from _counted_twice(context)
    yield from _partial_batches(context)
    for absence in context.absences:
        if absence.reader is None and not absence.is_begun:
            word = context.word(*absence[:3])
            device = context.holder(absence.stage, absence.microbatch)
            yield context.without(
                device, word, f"device {device} never runs {word}. Add it to device {device}."
            )


def produced(context: Context) -> Iterator[Breach]:
    """Every value that is read is computed somewhere."""
    for absence in context.absences:
        if absence.reader is not None:
            row, value = absence.reader
            device = int(context.program.device_of[row])
            source = context.holder(absence.stage, absence.microbatch)
            yield context.at(
                row,
                f"device {device} waits at {context.token(row)} for {_NAMES[value]} of stage"
                f" {absence.stage}, which device {source} never computes."
                f" Add {context.word(*absence[:3])} to device {source}.",
            )


def drained(context: Context) -> Iterator[Breach]:
    """Nothing is left in flight at the end."""
    for absence in context.absences:
        if absence.reader is None and absence.is_begun:
            begun = Kind.I if absence.kind is Kind.W else Kind.F
            device = context.holder(absence.stage, absence.microbatch)
            word = context.word(*absence[:3])
            before = context.word(absence.stage, begun, absence.microbatch)
            yield context.without(
                device,
                before,
                f"device {device} ends with what {before} left for {word} still in memory."
                f" Add {word} to device {device}.",
            )
    for send, receive in ENDS.values():
        yield from _unreceived(context, send, receive)


def placed(context: Context) -> Iterator[Breach]:
    """Every action stands on the device that holds its stage, every wire between two of them."""
    program, actions = context.program, context.program.actions
    home = program.placement.table[actions.pipe, actions.stage]
    for row in np.flatnonzero(program.device_of != home).tolist():
        word = context.token(row)
        yield context.at(
            row,
            f"device {program.device_of[row]} lists {word}, but device {home[row]} holds stage"
            f" {actions.stage[row]} of pipe {actions.pipe[row]}."
            f" Move {word} to device {home[row]}.",
        )
    yield from _astray(context)


def offloaded(context: Context) -> Iterator[Breach]:
    """What goes to the host comes back, once, and only that: whole, or segment by segment."""
    coverage = context.coverage
    for kind, other, fate in (
        (Kind.OFFLOAD, Kind.ONLOAD, "never comes back from the host"),
        (Kind.ONLOAD, Kind.OFFLOAD, "never went to the host"),
    ):
        for twice, _ in coverage.repeats(kind):
            yield context.at(twice, f"{context.token(twice)} stands twice. Remove one of the two.")
        row, microbatch = coverage.cells(kind)
        is_lost = ~np.isin(coverage.keys(kind), coverage.keys(other))
        for lost, where in _first_of_each(row[is_lost], microbatch[is_lost]):
            action = context.program.actions[lost]
            remedy = context.word(action.stage, other, where, segment=action.segment)
            device = int(context.program.device_of[lost])
            yield context.at(
                lost,
                f"the state of {context.token(lost)} {fate}. Add {remedy} to device {device}.",
            )
    yield from _without_forward(context)


def _without_forward(context: Context) -> Iterator[Breach]:
    """Copies of a segment that its stage is not cut into, or that leaves with its whole stage."""
    coverage, segment = context.coverage, context.program.actions.segment
    row, microbatch = coverage.cells(Kind.OFFLOAD)
    is_cut = segment[row] >= 0
    is_known = np.isin(coverage.keys(Kind.OFFLOAD), coverage.keys(Kind.F))
    for strange, where in _first_of_each(row[is_cut & ~is_known], microbatch[is_cut & ~is_known]):
        forward = context.word(int(context.program.actions.stage[strange]), Kind.F, where)
        yield context.at(
            strange,
            f"{context.token(strange)} names a segment that {forward} is not cut into. Correct it.",
        )
    stage = context.program.actions.stage
    whole = {*zip(stage[row[~is_cut]].tolist(), microbatch[~is_cut].tolist(), strict=True)}
    for one, where in _first_of_each(row[is_cut], microbatch[is_cut]):
        if (int(stage[one]), where) in whole:
            yield context.at(
                one, f"{context.token(one)} leaves with its whole stage already. Remove one."
            )


def _repeated(context: Context) -> Iterator[Breach]:
    for kinds in ((Kind.F,), (Kind.B, Kind.I), (Kind.W,), (Kind.R,)):
        for row, before in context.coverage.repeats(*kinds):
            yield context.at(
                row,
                f"device {context.program.device_of[row]} runs {context.token(row)}, work that"
                f" {context.token(before)} on device {context.program.device_of[before]} does"
                " already. Remove one of the two.",
            )


def _frozen(context: Context) -> Iterator[Breach]:
    """Backwards that a frozen stage does not have."""
    actions, stages = context.program.actions, context.program.graph.stages
    is_frozen = np.array([stage.backward is not Backward.FULL for stage in stages])
    is_end = np.array([stage.backward is Backward.NONE for stage in stages])
    for kinds, has_none in (((Kind.B, Kind.I, Kind.R), is_end), ((Kind.W,), is_frozen)):
        rows = context.coverage.rows(*kinds)
        for row in rows[has_none[actions.stage[rows]]].tolist():
            yield context.at(
                row,
                f"device {context.program.device_of[row]} runs {context.token(row)}, but stage"
                f" {actions.stage[row]} is frozen. Remove it.",
            )


def _counted_twice(context: Context) -> Iterator[Breach]:
    """A W beside a whole backward."""
    stage = context.program.actions.stage
    row, microbatch = context.coverage.cells(Kind.W)
    is_double = context.coverage.count(Kind.B)[stage[row], microbatch] > 0
    for double, where in _first_of_each(row[is_double], microbatch[is_double]):
        whole = context.word(int(stage[double]), Kind.B, where)
        yield context.at(
            double,
            f"device {context.program.device_of[double]} runs {context.token(double)}, which"
            f" {whole} includes. Remove it.",
        )


def _partial_batches(context: Context) -> Iterator[Breach]:
    """A stage that needs the whole batch gets it in one action."""
    program, actions = context.program, context.program.actions
    needs_all = np.array([stage.is_whole_batch for stage in program.graph.stages])
    is_part = (actions.span != program.microbatches) & (actions.kind <= Kind.R)
    for row in np.flatnonzero(is_part & needs_all[actions.stage]).tolist():
        yield context.at(
            row,
            f"{context.token(row)} covers a part of the batch, but stage {actions.stage[row]}"
            f" needs it whole. Let one action span all {program.microbatches} microbatches, or use"
            f" gpipe, in which all forwards of a stage come before its backwards.",
        )


def _unreceived(context: Context, send: Kind, receive: Kind) -> Iterator[Breach]:
    actions, graph = context.program.actions, context.program.graph
    row, microbatch = context.coverage.cells(send)
    received = context.coverage.count(receive)[actions.edge[row], microbatch]
    for lost, where in _first_of_each(row[received == 0], microbatch[received == 0]):
        edge = int(actions.edge[lost])
        stage = graph.edges[edge][EDGE_END[receive]]
        yield context.at(
            lost,
            f"the message of {context.token(lost)} is never received."
            f" Add {context.word(stage, receive, where, edge=edge)} to device"
            f" {context.holder(stage, where)}.",
        )


def _astray(context: Context) -> Iterator[Breach]:
    """Sends and receives on a channel to or from a device that does not hold the other stage."""
    program = context.program
    has_channel = np.array([lane.channel is not None for lane in program.lanes])[program.lane_of]
    far_end = np.array([_far_end(lane) for lane in program.lanes], np.int64)[program.lane_of]
    is_astray = has_channel & (program.far_end != far_end)
    for kind in EDGE_END:
        rows = np.flatnonzero(is_astray & (program.actions.kind == kind))
        for row, home in zip(rows.tolist(), program.far_end[rows].tolist(), strict=True):
            yield context.at(
                row,
                f"device {program.device_of[row]} lists {context.token(row)} on a channel with"
                f" device {far_end[row]}. Move it to the one with device {home}.",
            )


def _far_end(lane: Lane) -> int:
    if lane.channel is None:
        return -1
    source, destination = lane.channel.source, lane.channel.destination
    return destination if lane.device == source else source


def _first_of_each(rows: Index, others: Index) -> Iterator[tuple[int, int]]:
    unique, first = np.unique(rows, return_index=True)
    return zip(unique.tolist(), others[first].tolist(), strict=True)

"""Versions: the weights an action asks for exist, and every stage learns equally often.

update t    once for each step, in order, after the gradients of step t
use of v    after update v - 1
B or W      of step t after update t - 1, which would take its gradient as well: not where updates
            wait for other devices and every backward says of which version it is
tied        each end of a tied weight is summed and updated once for each step, too
F and B     of a microbatch at a stage use one version; where nothing is stashed, each the newest
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from weft.ir.actions import Column, Index
from weft.ir.graph import Backward
from weft.ir.kinds import Kind
from weft.ir.tables import Groups
from weft.ir.versions import is_shared_update, resident_versions
from weft.verify.context import Breach, Context
from weft.verify.order import OF_WEIGHTS, late, too_late

_OF_VERSIONS = (Kind.UPDATE, Kind.REDUCE, Kind.GATHER, Kind.FREE)
_OF_PARTS = (Kind.UPDATE, Kind.REDUCE, Kind.GATHER)  # tied weights are counted apart
_VERBS = {Kind.UPDATE: "updates", Kind.REDUCE: "sums", Kind.GATHER: "gathers"}
_WORDS = {Kind.UPDATE: "{}U", Kind.REDUCE: "reduce:{}", Kind.GATHER: "gather:{}"}


def versioned(context: Context) -> Iterator[Breach]:
    """Asked only of programs that update or name versions."""
    actions = context.program.actions
    if not (np.isin(actions.kind, _OF_VERSIONS).any() or (actions.version >= 0).any()):
        return
    yield from _in_sequence(context)
    yield from _each_step(context)
    yield from _unmade(context)
    yield from _reduced(context)
    yield from _too_early(context)
    yield from _joining(context)
    yield from _stashed(context) if context.program.is_stashing else _newest(context)
    if context.limits.versions is not None:
        yield from _resident(context)


def _holders(context: Context) -> Index:
    """For each action, a number for its (pipe, stage), and of a tied weight for its end there."""
    actions = context.program.actions
    held = actions.pipe.astype(np.int64) * context.program.stages + actions.stage
    has_tie = np.isin(actions.kind, _OF_PARTS)
    return held * (len(context.program.ties) + 1) + np.where(has_tie, actions.edge + 1, 0)


def _in_sequence(context: Context) -> Iterator[Breach]:
    """Of each stage and pipe, updates 0, 1, 2, ... without gap or repeat; the same for frees."""
    holder, version = _holders(context), context.program.actions.version
    for kind in _OF_VERSIONS:
        rows = context.coverage.rows(kind)
        rows = rows[np.argsort(holder[rows], kind="stable")]
        due = np.arange(len(rows)) - np.searchsorted(holder[rows], holder[rows])
        is_wrong = version[rows] != due
        for row, wanted in zip(rows[is_wrong].tolist(), due[is_wrong].tolist(), strict=True):
            yield context.at(
                row,
                f"device {context.program.device_of[row]} lists {context.token(row)} where version"
                f" {wanted} is due. Let versions follow each other without gap or repeat.",
            )


def _each_step(context: Context) -> Iterator[Breach]:
    """As many sums and updates as steps for what learns, none for what does not."""
    program, parts = context.program, len(context.program.ties) + 1
    has_updates = bool(len(context.coverage.rows(Kind.UPDATE)))
    learns = np.array([stage.backward is Backward.FULL for stage in program.graph.stages])
    is_held = np.stack([learns, *(learns & _has_end(context, tie) for tie in range(parts - 1))], 1)
    shape = (len(program.placement.pipes), program.stages, parts)
    for kind in _OF_PARTS:
        rows = context.coverage.rows(kind)
        counts = np.bincount(_holders(context)[rows], minlength=np.prod(shape)).reshape(shape)
        for part in range(parts):
            is_asked = has_updates if kind is Kind.UPDATE or part else bool(counts[..., 0].any())
            is_asked = is_asked if kind is not Kind.GATHER else bool(counts.any())
            if is_asked or counts[..., part].any():
                wanted = is_held[:, part] * program.steps
                yield from _uncounted(context, kind, part, counts[..., part], wanted)


def _has_end(context: Context, tie: int) -> NDArray[np.bool_]:
    return np.isin(np.arange(context.program.stages), context.program.ties[tie])


def _uncounted(
    context: Context, kind: Kind, part: int, counts: Index, wanted: Index
) -> Iterator[Breach]:
    """Holders that sum or update a part of their weights more or less often than wanted."""
    program, verb = context.program, _VERBS[kind]
    for pipe, stage in np.argwhere(counts != wanted).tolist():
        device, found = int(program.placement.table[pipe, stage]), int(counts[pipe, stage])
        what = f"stage {stage}" if not part else f"the tied weight {part - 1} of stage {stage}"
        yield context.without(
            device,
            _WORDS[kind].format(stage),
            f"device {device} {verb} {what} of pipe {pipe} {found} times in {program.steps}"
            f" steps. Let it do so {wanted[stage]} times.",
        )


def _unmade(context: Context) -> Iterator[Breach]:
    """Versions that are used or freed, but that no update makes."""
    actions, holder = context.program.actions, _holders(context)
    updates = context.coverage.rows(Kind.UPDATE)
    made = _pairs(holder[updates], actions.version[updates] + 1)
    users = np.flatnonzero((actions.version > 0) & ~np.isin(actions.kind, _OF_PARTS))
    is_unmade = ~np.isin(_pairs(holder[users], actions.version[users]), made)
    for row in users[is_unmade].tolist():
        version = int(actions.version[row])
        device = int(context.program.device_of[row])
        yield context.at(
            row,
            f"device {device} lists {context.token(row)}, but nothing makes version {version} of"
            f" stage {actions.stage[row]}. Add its update of version {version - 1} to"
            f" device {device}.",
        )


def _reduced(context: Context) -> Iterator[Breach]:
    """Where gradients are summed, each update has its sum and each sum its update.

    A program without any update sums gradients for whoever asked for them.
    """
    actions, holder = context.program.actions, _holders(context)
    updates, reduces = context.coverage.rows(Kind.UPDATE), context.coverage.rows(Kind.REDUCE)
    if not len(updates):
        return
    if len(context.program.placement.pipes) == 1 and (actions.edge[reduces] >= 0).all():
        updates = updates[actions.edge[updates] >= 0]
    for rows, others, name in ((updates, reduces, "reduction"), (reduces, updates, "update")):
        keys = _pairs(holder[others], actions.version[others])
        is_alone = ~np.isin(_pairs(holder[rows], actions.version[rows]), keys)
        for row in rows[is_alone].tolist():
            device = int(context.program.device_of[row])
            yield context.at(
                row,
                f"{context.token(row)} has no {name}, and the copies of stage {actions.stage[row]}"
                f" would drift apart. Add its {name} to device {device}, or lower the program:"
                f" lower.executable adds them all.",
            )


def _too_early(context: Context) -> Iterator[Breach]:
    """Weights that are used before they are made, updates before their gradients."""
    dependencies = context.program.dependencies
    rows = too_late(context.program)
    rows = rows[np.isin(dependencies.value[rows], OF_WEIGHTS)]
    _, first = np.unique(dependencies.consumer[rows], return_index=True)
    for row in rows[first].tolist():
        yield late(context, int(dependencies.consumer[row]), int(dependencies.producer[row]))


def _joining(context: Context) -> Iterator[Breach]:
    """Weight gradients in front of the update before theirs, which would take them as well.

    An update that waits for other devices takes the gradients of its own step alone: backwards
    of the next one that name their version may come before it.
    """
    program, actions, holder = context.program, context.program.actions, _holders(context)
    is_apart = is_shared_update(program)
    updates = context.coverage.rows(Kind.UPDATE)
    ends = context.coverage.rows(Kind.B, Kind.W)
    before = Groups(updates, _pairs(holder[updates], actions.version[updates] + 1))
    step = actions.microbatch[ends] // program.microbatches
    for row, update in zip(*before.join(ends, _pairs(holder[ends], step)), strict=True):
        is_distinct = is_apart[update] and actions.version[row] >= 0
        if program.lane_of[row] == program.lane_of[update] and row < update and not is_distinct:
            yield context.at(
                int(row),
                f"device {program.device_of[row]} runs {context.token(row)} before"
                f" {context.token(update)}, which would take its gradient as well."
                f" Move {context.token(update)} in front of {context.token(row)}.",
            )


def _newest(context: Context) -> Iterator[Breach]:
    """Where nothing is stashed, older weights are gone: every action uses the newest."""
    program, actions = context.program, context.program.actions
    newest, named = _updates_before(context), actions.version
    rows = context.coverage.rows(Kind.F, Kind.B, Kind.I, Kind.W, Kind.R)
    for row in rows[(named[rows] >= 0) & (named[rows] != newest[rows])].tolist():
        yield context.at(
            row,
            f"device {program.device_of[row]} runs {context.token(row)} with version {named[row]},"
            f" but nothing is stashed and the newest there is version {newest[row]}."
            f" Name that one, or stash.",
        )
    yield from _recomputed_with_others(context, newest)


def _recomputed_with_others(context: Context, newest: Index) -> Iterator[Breach]:
    """Where nothing is stashed, an update between a recomputation and its backward."""
    program, coverage = context.program, context.coverage
    again = np.full((program.stages, coverage.microbatches), -1, np.int64)
    row, microbatch = coverage.cells(Kind.R)
    again[program.actions.stage[row], microbatch] = newest[row]
    row, microbatch = coverage.cells(Kind.B, Kind.I)
    expected = again[program.actions.stage[row], microbatch]
    differs = (expected >= 0) & (expected != newest[row])
    for reader in np.unique(row[differs]).tolist():
        yield context.at(
            reader,
            f"device {program.device_of[reader]} updates stage {program.actions.stage[reader]}"
            f" between the recomputation for {context.token(reader)} and it, and nothing is"
            f" stashed. Recompute after the update.",
        )


def _stashed(context: Context) -> Iterator[Breach]:
    """The backward of a microbatch uses the weights of its forward."""
    program, coverage = context.program, context.coverage
    version = _used_versions(context)
    forward = np.full((program.stages, coverage.microbatches), -1, np.int64)
    row, microbatch = coverage.cells(Kind.F)
    forward[program.actions.stage[row], microbatch] = version[row]
    row, microbatch = coverage.cells(Kind.B, Kind.I, Kind.W, Kind.R)
    expected = forward[program.actions.stage[row], microbatch]
    differs = (expected >= 0) & (expected != version[row])
    lost, first = np.unique(row[differs], return_index=True)
    for reader, wanted in zip(lost.tolist(), expected[differs][first].tolist(), strict=True):
        yield context.at(
            reader,
            f"device {program.device_of[reader]} runs {context.token(reader)} with version"
            f" {version[reader]}, but its forward used version {wanted}. Use that one.",
        )


def _used_versions(context: Context) -> Index:
    """The version that each action names, or else the newest where it stands."""
    named = context.program.actions.version
    return np.where(named >= 0, named, _updates_before(context))


def _updates_before(context: Context) -> Index:
    """For each action, how many updates of its stage and pipe stand in front of it."""
    count = len(context.program)
    place = _holders(context) * (count + 1) + np.arange(count)
    updates = np.sort(place[context.coverage.rows(Kind.UPDATE)])
    before = np.searchsorted(updates, place - place % (count + 1))
    return _as_on_compute(context, np.searchsorted(updates, place) - before)


def _as_on_compute(context: Context, newest: Index) -> Index:
    """The same, where a part of an action on the experts stream has what its others have.

    Updates stand on the compute stream, where each action has a part.
    """
    program, actions = context.program, context.program.actions
    is_aside = ~program.is_on_compute[program.lane_of] & (actions.kind <= Kind.R)
    others = np.flatnonzero(program.is_on_compute[program.lane_of] & (actions.kind <= Kind.R))
    if not is_aside.any() or not len(others):
        return newest
    cell = (actions.stage.astype(np.int64) << 32 | actions.microbatch) << 4 | actions.kind
    others = others[np.argsort(cell[others], kind="stable")]
    nearest = np.minimum(np.searchsorted(cell[others], cell[is_aside]), len(others) - 1)
    newest = newest.copy()
    newest[is_aside] = newest[others[nearest]]
    return newest


def _resident(context: Context) -> Iterator[Breach]:
    """No stage keeps more versions than is claimed."""
    claims = context.limits.versions or ()
    found = resident_versions(context.program)
    for stage, (kept, claim) in enumerate(zip(found, claims, strict=True)):
        if kept > claim:
            device = int(context.program.placement.table[0, stage])
            yield context.without(
                device,
                f"{stage}U",
                f"device {device} keeps {kept} versions of stage {stage} and may keep {claim}."
                " Run fewer microbatches ahead of the update.",
            )


def _pairs(holder: Index, version: Column) -> Index:
    return holder << 32 | version.astype(np.int64)

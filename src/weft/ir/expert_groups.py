"""Expert groups: pipes that hold some of the experts each, and exchange tokens.

    group 0 1     pipe 0   A ─ D ─╮ ╭─ E ─ C        a dispatch, or a combine, waits until all pipes
                                  ╳                  of its group have come to theirs: it reads
                  pipe 1   A ─ D ─╯ ╰─ E ─ C        what theirs read

The first microbatch of a pipe meets the first of each other one, the second the second, and so on.
Where no stage is cut into segments, tokens are exchanged somewhere within F, R, B and I of any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.ir.actions import Actions, Index
from weft.ir.dependencies import Dependencies, Found, Value
from weft.ir.kinds import Kind, Part
from weft.ir.tables import Groups

PipeGroups: TypeAlias = tuple[tuple[int, ...], ...]


def check_expert_groups(name: str, groups: PipeGroups, pipe_of: Sequence[int], pipes: int) -> None:
    """Refuse groups that do not have each pipe once, or whose pipes have unlike work."""
    if not groups:
        return
    if sorted(pipe for group in groups for pipe in group) != list(range(pipes)):
        raise InputError(f"{name}: expert groups name each of the {pipes} pipes once, not {groups}")
    if len({len(group) for group in groups}) > 1:
        raise InputError(f"{name}: expert groups have as many pipes as each other, not {groups}")
    for group in groups:
        counts = {pipe: sum(one == pipe for one in pipe_of) for pipe in group}
        if len(set(counts.values())) > 1:
            raise InputError(
                f"{name}: pipes {group} exchange tokens, so they need as many microbatches as each"
                f" other, not {[*counts.values()]}"
            )


def meetings(groups: PipeGroups, pipe_of: Sequence[int]) -> list[tuple[int, ...]]:
    """Microbatches of a step that exchange tokens with each other, in the order of the pipes."""
    found = []
    for group in groups:
        each = [[m for m, pipe in enumerate(pipe_of) if pipe == one] for one in group]
        found += [*zip(*each, strict=True)]
    return found


def expert_index(groups: PipeGroups, pipe: int) -> int:
    """Which of the ranks of its group a pipe is; the only one where there are no groups."""
    return next((group.index(pipe) for group in groups if pipe in group), 0)


def copies_apart(groups: PipeGroups, pipe: int, pipes: int) -> list[int]:
    """The pipes with the same experts as a pipe, itself among them."""
    index = expert_index(groups, pipe)
    return [one for one in range(pipes) if expert_index(groups, one) == index]


def is_exchanging(actions: Actions) -> NDArray[np.bool_]:
    """For each action, whether it may exchange tokens with others of its group."""
    computes = np.isin(actions.kind, (Kind.F, Kind.R, Kind.B, Kind.I))
    if not (actions.segment >= 0).any():
        return np.asarray(computes)
    is_apart = np.isin(actions.segment % len(Part), (Part.DISPATCH, Part.COMBINE))
    return np.asarray(computes & (actions.segment >= 0) & is_apart)


def meeting_keys(
    actions: Actions, rows: Index, groups: PipeGroups, pipe_of: Sequence[int]
) -> Index:
    """A number for each of some exchanges, the same for all that meet in it."""
    first = np.zeros(len(pipe_of), np.int64)
    for meeting in meetings(groups, pipe_of):
        first[list(meeting)] = meeting[0]
    step, index = np.divmod(actions.microbatch[rows].astype(np.int64), len(pipe_of))
    columns = (actions.stage, actions.segment, actions.kind)
    named = [*(column[rows].astype(np.int64) for column in columns), step, first[index]]
    _, keys = np.unique(np.stack(named), axis=1, return_inverse=True)
    return np.asarray(keys.reshape(-1), np.int64)


def with_tokens(
    dependencies: Dependencies, actions: Actions, groups: PipeGroups, pipe_of: Sequence[int]
) -> Dependencies:
    """With what actions read because others of their group read it."""
    rows = np.flatnonzero(is_exchanging(actions))
    keys = np.full(len(actions), -1, np.int64)
    keys[rows] = meeting_keys(actions, rows, groups, pipe_of)
    slot = np.cumsum(actions.joined == 0)  # of a pair, which waits as a whole
    is_outside = slot[dependencies.consumer] != slot[dependencies.producer]
    read = np.flatnonzero((keys[dependencies.consumer] >= 0) & is_outside)
    reads, readers = Groups(rows, keys[rows]).join(read, keys[dependencies.consumer[read]])
    is_other = dependencies.consumer[reads] != readers
    found = Found()
    found.add(Value.TOKENS, readers[is_other], dependencies.producer[reads[is_other]])
    return dependencies.with_more(found.dependencies())

"""Through weights: gradients enter updates, and what uses a version waits for its update.

    B B | REDUCE | UPDATE v | F and B with version v + 1
    B B | REDUCE | UPDATE v | GATHER | F and B with version v + 1      each copy updates its share

What several stages share is said by `Sharing`: tied weights, whose ends are summed and updated
apart from the stages' own weights, and norms, for which updates wait together. The table of
`ir.values` says in words what this file finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from weft.errors import InputError
from weft.ir.actions import Actions, Index
from weft.ir.dependencies import Found, Value
from weft.ir.graph import Backward, Graph
from weft.ir.kinds import Kind
from weft.ir.tables import Groups, Tables

StageGroups: TypeAlias = tuple[tuple[int, ...], ...]


class Sharing(NamedTuple):
    """Stages that share a weight, its home first, and stages whose updates share a norm."""

    ties: StageGroups = ()
    norms: StageGroups = ()

    def check(self, name: str, stages: int) -> None:
        """Refuse what names a stage twice, or one that the program does not have."""
        for word, groups in (("tied weight", self.ties), ("norm", self.norms)):
            for group in groups:
                outside = sorted(set(group) - set(range(stages)))
                if outside:
                    raise InputError(
                        f"{name}: a {word} names stage {outside[0]};"
                        f" stages are numbered 0 to {stages - 1}"
                    )
                if len(set(group)) != len(group) or not group:
                    raise InputError(f"{name}: a {word} names each of its stages once")
        for tie in self.ties:
            if len(tie) < 2 or list(tie) != sorted(tie):
                raise InputError(
                    f"{name}: a tied weight has two stages or more, in model order, not {tie}"
                )
        grouped = [stage for group in self.norms for stage in group]
        if len(set(grouped)) != len(grouped):
            raise InputError(f"{name}: a stage shares one norm, not several")


class Weights:
    """The actions of a program by the weights that they make, sum or use.

    A stage's weights have parts: 0 is its own, j + 1 its end of the tied weight j. `measured` are
    the pipes on which gradients are measured: each has some that the others do not have.
    """

    def __init__(
        self,
        graph: Graph,
        tables: Tables,
        *,
        step: int,
        pipes: int,
        sharing: Sharing,
        measured: Sequence[int] = (0,),
    ) -> None:
        actions = tables.actions
        self._tables, self._actions, self._sharing = tables, actions, sharing
        self._measured = measured
        self._learns = np.array([s.backward is Backward.FULL for s in graph.stages])
        self._version = np.maximum(actions.version, 0).astype(np.int64)
        self._pipes = pipes
        self._parts = max(len(sharing.ties), int(_tie_of(actions).max(initial=-1)) + 1) + 1
        last_step = int(actions.microbatch.max(initial=0)) // step
        self._span = int(self._version.max(initial=0)) + last_step + 2
        self._part = _tie_of(actions) + 1
        rows = np.arange(len(actions))
        self._uses = rows[actions.kind <= Kind.R]
        self._updates = rows[actions.kind == Kind.UPDATE]
        self._reduces = rows[actions.kind == Kind.REDUCE]
        self._gathers = rows[actions.kind == Kind.GATHER]
        self._ends = rows[np.isin(actions.kind, (Kind.B, Kind.W))]
        self._by_version = self._key(actions.stage, actions.pipe, self._part, self._version)
        self._by_step = (actions.microbatch // step).astype(np.int64)
        self._writers = self._made_by()
        self._sums = Groups(self._reduces, self._by_version[self._reduces])
        self._gradients = self._grouped_by_step(self._ends)

    def _made_by(self) -> Groups:
        """What makes each version whole: a gather, or else the update."""
        keys = self._by_version
        is_alone = ~np.isin(keys[self._updates], keys[self._gathers])
        rows = np.concatenate([self._gathers, self._updates[is_alone]])
        return Groups(rows, keys[rows] + 1)

    def resolve(self, found: Found) -> None:
        """All that is read through weights, by the table of `ir.values`."""
        self._own(found)
        for tie, ends in enumerate(self._sharing.ties):
            self._tied(found, tie, ends)
        for group in self._sharing.norms:
            self._normed(found, group)

    def _key(self, stage: ArrayLike, pipe: ArrayLike, part: ArrayLike, at: ArrayLike) -> Index:
        """A number for a version (or step) of a part of a stage's weights on a pipe."""
        holder = np.asarray(stage, np.int64) * self._pipes + np.asarray(pipe)
        whole = (holder * self._parts + np.asarray(part)) * self._span
        return np.asarray(whole + np.asarray(at), np.int64)

    def _grouped_by_step(self, rows: Index) -> Groups:
        actions = self._actions
        return Groups(
            rows, self._key(actions.stage[rows], actions.pipe[rows], 0, self._by_step[rows])
        )

    # a stage's own weights

    def _own(self, found: Found) -> None:
        """Gradients of step t enter update t; what uses version v waits for update v - 1."""
        actions, keys = self._actions, self._by_version
        readers = np.concatenate([self._uses[actions.version[self._uses] > 0], self._updates])
        found.add(Value.WEIGHTS, *self._writers.join(readers, keys[readers]))

        summed = self._sums.join(self._updates, keys[self._updates])
        found.add(Value.WEIGHT_GRADIENT, *summed)
        alone = np.setdiff1d(self._updates[self._part[self._updates] == 0], summed[0])
        found.add(Value.WEIGHT_GRADIENT, *self._gradients.join(alone, keys[alone]))

        of_stage = Groups(self._ends, self._stage_key(self._ends, self._by_step))
        reduces = self._reduces[self._part[self._reduces] == 0]
        of_pipes = of_stage.join(reduces, self._stage_key(reduces, self._version))
        found.add(Value.WEIGHT_GRADIENT, *of_pipes)

        shares = Groups(self._updates, self._part_key(self._updates))
        found.add(Value.WEIGHTS, *shares.join(self._gathers, self._part_key(self._gathers)))

        frees = np.flatnonzero(actions.kind == Kind.FREE)
        users = Groups(self._uses, keys[self._uses])
        found.add(Value.WEIGHTS, *users.join(frees, keys[frees]))

    def _stage_key(self, rows: Index, at: Index) -> Index:
        return np.asarray(self._actions.stage[rows].astype(np.int64) * self._span + at[rows])

    def _part_key(self, rows: Index) -> Index:
        """A number for a version of a part of a stage's weights, on whatever pipe."""
        return self._key(self._actions.stage[rows], 0, self._part[rows], self._version[rows])

    # tied weights

    def _tied(self, found: Found, tie: int, ends: Sequence[int]) -> None:
        """The sum of all ends, and the users of what the update at each of them makes."""
        reduces = self._reduces[self._part[self._reduces] == tie + 1]
        for end in ends:
            whole = self._whole(reduces, end, self._actions.pipe[reduces], self._gradients)
            found.add(Value.WEIGHT_GRADIENT, *whole)
        version = self._versions_at(ends[0])
        users = self._uses[np.isin(self._actions.stage[self._uses], ends)]
        used = version[self._actions.microbatch[users]]
        users, used = users[used > 0], used[used > 0]
        keys = self._key(self._actions.stage[users], self._actions.pipe[users], tie + 1, used)
        found.add(Value.WEIGHTS, *self._writers.join(users, keys))

    def _versions_at(self, stage: int) -> Index:
        """For each microbatch, the version that its forward at a stage names; 0 where none."""
        forwards = self._tables.out_of(Kind.F)[stage]
        return np.where(forwards >= 0, self._version[forwards], 0)

    def _whole(
        self, readers: Index, stage: int, pipe: ArrayLike, gradients: Groups
    ) -> tuple[Index, Index]:
        """What makes the gradients whole that readers need of a stage: sums, or else backwards."""
        keys = self._key(stage, pipe, 0, self._version[readers])
        reader, total = self._sums.join(readers, keys)
        if not self._learns[stage]:
            return reader, total
        is_alone = ~np.isin(readers, reader)
        alone, backward = gradients.join(readers[is_alone], keys[is_alone])
        return np.concatenate([reader, alone]), np.concatenate([total, backward])

    # norms

    def _normed(self, found: Found, group: Sequence[int]) -> None:
        """The updates of a group wait for the gradients of all, each weight counted once."""
        homes = np.array([tie[0] for tie in self._sharing.ties], np.int64)
        counted = self._counted_at(homes)
        readers = self._updates[np.isin(counted, group)]
        last = self._grouped_by_step(self._last_ends())
        for member in group:
            for pipe in self._measured:
                found.add(Value.NORM, *self._whole(readers, member, pipe, last))
        for tie in np.flatnonzero(np.isin(homes, group)).tolist():
            keys = self._key(int(homes[tie]), 0, tie + 1, self._version[readers])
            found.add(Value.NORM, *self._sums.join(readers, keys))

    def _counted_at(self, homes: Index) -> Index:
        """For each update, the stage at which its weights are counted: of tied ones, the home."""
        part, stage = self._part[self._updates], self._actions.stage[self._updates]
        home_of_part = np.append(-1, homes)  # part 0 is a stage's own
        return np.where(part == 0, stage, home_of_part[np.where(part <= len(homes), part, 0)])

    def _last_ends(self) -> Index:
        """The last backward of each step of each holder, which stands after the others."""
        ends, actions = self._ends, self._actions
        if (actions.segment[ends] >= 0).any():
            return ends  # on several streams, so that the last in the list need not end last
        keys = self._key(actions.stage[ends], actions.pipe[ends], 0, self._by_step[ends])
        order = np.argsort(keys, kind="stable")
        return np.asarray(ends[order][np.append(np.diff(keys[order]) != 0, True)[: len(ends)]])


def _tie_of(actions: Actions) -> Index:
    """For each action, the tied weight that it sums or updates; -1 where it is none."""
    is_of_weights = np.isin(actions.kind, (Kind.REDUCE, Kind.UPDATE, Kind.GATHER))
    return np.where(is_of_weights, actions.edge, -1).astype(np.int64)

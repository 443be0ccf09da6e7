"""Memory over time: what each action takes and gives back, said once.

    kind          at its start                 at its end
    F             + saved state, or + input where the stage is recomputed
    R             + saved state
    B, W, frozen I                             - saved state (- input)
    OFFLOAD                                    - saved state, or - input
    ONLOAD        + saved state, or + input
    RECV          + value                      (its reader gives it back at its end)
    F B I W R     + scratch                    - scratch
    UPDATE                                     + a weight version, where versions are kept
    FREE                                       - that version; without FREEs its last user does

I gives nothing back: W may still need all of it. Weights, gradients and optimizer state of
what a device holds are there throughout; of the state a share, where copies gather weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from weft.cost import Cost
from weft.cost.cost import is_recomputed
from weft.cost.parts import sharing
from weft.ir.actions import Index
from weft.ir.earliest import Seconds
from weft.ir.graph import Backward
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.ir.values import Value


class Category(Enum):
    """What the bytes are."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    INPUTS = "inputs"
    BUFFERS = "buffers"


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A step function: from `times[i]` on, `levels[i]` bytes; it begins at minus infinity."""

    times: Seconds
    levels: NDArray[np.float64]

    @property
    def peak(self) -> float:
        return float(self.levels.max(initial=0.0))

    def at(self, time: float) -> float:
        return float(self.sampled(np.array(time)))

    def sampled(self, times: Seconds) -> NDArray[np.float64]:
        """The levels at these times."""
        return self.levels[np.searchsorted(self.times, times, "right") - 1]


@dataclass(frozen=True, eq=False)
class Usage:
    """For each device, a curve for each category that it uses."""

    curves: tuple[dict[Category, Curve], ...] = field(repr=False)

    def total(self, device: int) -> Curve:
        """All categories of a device together."""
        return self._totals[device]

    @property
    def peaks(self) -> list[float]:
        """For each device, the most bytes in use at once."""
        return [total.peak for total in self._totals]

    @cached_property
    def _totals(self) -> list[Curve]:
        return [_total(list(curves.values())) for curves in self.curves]


def _total(curves: list[Curve]) -> Curve:
    times = np.unique(np.concatenate([[-np.inf], *(curve.times for curve in curves)]))
    return Curve(times, sum((curve.sampled(times) for curve in curves), np.zeros(len(times))))


def usage(program: Program, cost: Cost, start: Seconds, end: Seconds) -> Usage:
    """Memory by category on every device over time."""
    changes = _activation_changes(program, cost) + _buffer_changes(program, cost)
    changes += _scratch_changes(program, cost) + _version_changes(program, cost)
    curves: list[dict[Category, Curve]] = [{} for _ in range(program.devices)]
    for category in Category:
        of_category = [change for change in changes if change.category is category]
        bases = _held(program, cost, category)
        for device, here in enumerate(_by_device(program, of_category)):
            curve = _curve(here, start, end, bases[device])
            if len(curve.times) > 1 or curve.peak:
                curves[device][category] = curve
    return Usage(tuple(curves))


def _held(program: Program, cost: Cost, category: Category) -> list[float]:
    """For each device, what it holds of a category throughout."""
    per_stage = {
        Category.WEIGHTS: cost.memory.weights,
        Category.GRADIENTS: cost.memory.gradients,
        Category.OPTIMIZER: cost.memory.optimizer,
    }.get(category)
    if per_stage is None:
        return [0.0] * program.devices
    share = _share(program) if category is Category.OPTIMIZER else 1.0
    return [sum(per_stage[stage] * share for _, stage in held) for held in program.placement.held]


def _share(program: Program) -> float:
    """How much of its optimizer state each copy of a stage holds."""
    is_sharded = (program.actions.kind == Kind.GATHER).any()
    return 1 / len(program.placement.pipes) if is_sharded else 1.0


def peak_activations(program: Program, start: Seconds, end: Seconds) -> list[float]:
    """Most ordinary microbatches between F and B (or W) on each device, in shares of a device."""
    share = program.placement.share / program.parts
    kept = np.array([s.backward is not Backward.NONE for s in program.graph.stages]) * share
    amounts = (
        kept[program.actions.stage]
        * program.actions.span
        / sharing(program.actions, program.stages)
    )
    born, died = _births(program), _deaths(program)
    changes = [
        _Change(Category.ACTIVATIONS, born, amounts[born], is_at_start=True),
        _Change(Category.ACTIVATIONS, died, -amounts[died], is_at_start=False),
    ]
    return [_curve(here, start, end, 0.0).peak for here in _by_device(program, changes)]


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """These actions change a category by these amounts, at their start or at their end."""

    category: Category
    rows: Index
    amounts: NDArray[np.float64]
    is_at_start: bool


def _by_device(program: Program, changes: list[_Change]) -> list[list[_Change]]:
    """The changes of each device, their rows in program order."""
    found: list[list[_Change]] = [[] for _ in range(program.devices)]
    for change in changes:
        device = program.device_of[change.rows]
        order = np.argsort(device, kind="stable")
        cuts = np.searchsorted(device[order], np.arange(program.devices + 1))
        for index, (first, last) in enumerate(pairwise(cuts.tolist())):
            rows, amounts = change.rows[order[first:last]], change.amounts[order[first:last]]
            found[index].append(_Change(change.category, rows, amounts, change.is_at_start))
    return found


def _births(program: Program) -> Index:
    return np.flatnonzero(program.actions.kind == Kind.F)


def _deaths(program: Program) -> Index:
    """What ends the life of saved state: B, W, or I where the weights are frozen."""
    kind = program.actions.kind
    is_end = (kind == Kind.B) | (kind == Kind.W)
    frozen = np.array([s.backward is Backward.INPUT for s in program.graph.stages])
    if frozen.any():
        is_end |= (kind == Kind.I) & frozen[program.actions.stage]
    return np.flatnonzero(is_end)


def _activation_changes(program: Program, cost: Cost) -> list[_Change]:
    actions = program.actions
    scale = cost.covered(actions) / sharing(program.actions, program.stages)
    saved = np.array(cost.memory.saved)[actions.stage] * scale
    inputs = np.array(cost.memory.inputs)[actions.stage] * scale
    kept = np.array([s.backward is not Backward.NONE for s in program.graph.stages])
    saved, inputs = saved * kept[actions.stage], inputs * kept[actions.stage]
    again = is_recomputed(program)
    born, died = _births(program), _deaths(program)
    plain = born[~again[born]]
    recomputed, ended = born[again[born]], died[again[died]]
    by_kind = {kind: np.flatnonzero(actions.kind == kind) for kind in Kind}
    away, home = by_kind[Kind.OFFLOAD], by_kind[Kind.ONLOAD]
    taken = np.concatenate([plain, by_kind[Kind.R], home[~again[home]]])
    given = np.concatenate([died, away[~again[away]]])
    recomputed = np.concatenate([recomputed, home[again[home]]])
    ended = np.concatenate([ended, away[again[away]]])
    return [
        _Change(Category.ACTIVATIONS, taken, saved[taken], is_at_start=True),
        _Change(Category.ACTIVATIONS, given, -saved[given], is_at_start=False),
        _Change(Category.INPUTS, recomputed, inputs[recomputed], is_at_start=True),
        _Change(Category.INPUTS, ended, -inputs[ended], is_at_start=False),
    ]


def _buffer_changes(program: Program, cost: Cost) -> list[_Change]:
    """A received value lives from its arrival to the end of the action that reads it."""
    actions, dependencies = program.actions, program.dependencies
    is_receive = np.isin(actions.kind, (Kind.RECV_ACTIVATION, Kind.RECV_GRADIENT))
    is_own = dependencies.value != Value.TOKENS  # which another device reads
    rows = np.flatnonzero(is_receive[dependencies.producer] & is_own)
    if not len(rows):
        return []
    received, read = dependencies.producer[rows], dependencies.consumer[rows]
    sizes = cost.network.sizes(len(program.graph.edges))[dependencies.edge[rows]]
    sizes = sizes * cost.covered(actions.take(received))
    return [
        _Change(Category.BUFFERS, received, sizes, is_at_start=True),
        _Change(Category.BUFFERS, read, -sizes, is_at_start=False),
    ]


def _scratch_changes(program: Program, cost: Cost) -> list[_Change]:
    """What a computation needs while it runs."""
    if cost.memory.scratch is None:
        return []
    rows = np.flatnonzero(program.actions.kind <= Kind.R)
    sizes = np.array(cost.memory.scratch)[program.actions.stage[rows]]
    return [
        _Change(Category.BUFFERS, rows, sizes, is_at_start=True),
        _Change(Category.BUFFERS, rows, -sizes, is_at_start=False),
    ]


def _version_changes(program: Program, cost: Cost) -> list[_Change]:
    """An update adds a version; it goes when it is freed, or else after its last use."""
    actions = program.actions
    if not (actions.version > 0).any():
        return []
    made = np.flatnonzero((actions.kind == Kind.UPDATE) & (actions.edge < 0))
    freed = np.flatnonzero(actions.kind == Kind.FREE)
    gone = freed if len(freed) else _last_uses(program)
    size = np.array(cost.memory.weights)[actions.stage]
    return [
        _Change(Category.WEIGHTS, gone, -size[gone], is_at_start=False),
        _Change(Category.WEIGHTS, made, size[made], is_at_start=False),
    ]


def _last_uses(program: Program) -> Index:
    """For each version but the last of each (pipe, stage), the last action that needs it.

    That is its last user or the update that reads it, whichever stands later.
    """
    actions = program.actions
    named = np.flatnonzero(
        (actions.version >= 0) & (actions.kind != Kind.FREE) & (actions.edge < 0)
    )
    holder = actions.stage[named].astype(np.int64) * len(program.placement.pipes)
    keys = (holder + actions.pipe[named]) << 32 | actions.version[named]
    versions, which = np.unique(keys, return_inverse=True)
    last = np.zeros(len(versions), np.int64)
    np.maximum.at(last, which, named)
    is_updated = np.zeros(len(versions), np.bool_)
    is_updated[which[actions.kind[named] == Kind.UPDATE]] = True
    return last[is_updated]


def _curve(changes: list[_Change], start: Seconds, end: Seconds, base: float) -> Curve:
    """The running sum of changes; at one time, what is given back comes first."""
    changes = sorted(changes, key=lambda change: change.is_at_start)
    times = [(start if change.is_at_start else end)[change.rows] for change in changes]
    amounts = [change.amounts for change in changes]
    when = np.concatenate([np.array([-np.inf]), *times])
    order = np.argsort(when, kind="stable")
    levels = np.cumsum(np.concatenate([np.array([base]), *amounts])[order])
    return Curve(when[order], levels)

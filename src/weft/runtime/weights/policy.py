"""Rules: what all updates of a process go by: whose norms, which losses, rates and scales.

Refuses, before anything runs, what a program cannot have without standing still.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.runtime.ranks.losses import Ledger, Losses
from weft.runtime.ranks.world import World
from weft.runtime.stage.randomness import is_compiled
from weft.runtime.weights.delay import Delay
from weft.runtime.weights.factories import Nonfinite
from weft.runtime.weights.norms import Board, Entry
from weft.runtime.weights.scaling import Scale, Scaling
from weft.runtime.weights.staleness import Scope, Versions, check_ties, scoped
from weft.runtime.weights.ties import End


class Scopes(NamedTuple):
    """What a user asks of updates."""

    clip: float | None
    clip_by: Scope | None
    nonfinite: Nonfinite
    delay: Delay


class Share(NamedTuple):
    """Who tells the norms of a part, and which type its weights have."""

    part: int
    device: int
    dtype: torch.dtype


@dataclass(slots=True)
class Rules:
    """What all updates of a process go by.

    `groups` has, for each part, all parts that share its norm. `origin` is the update at which
    the flow began.
    """

    board: Board
    ledger: Ledger
    versions: Versions
    groups: Mapping[int, Sequence[Share]]
    clip: float | None
    nonfinite: Nonfinite
    temper: int | None
    scaling: Scaling | None = None
    origin: int = 0
    pages: dict[int, Losses] = field(default_factory=dict)
    norms: dict[int, Tensor] = field(default_factory=dict)  # the last of each part's group

    @property
    def is_measuring(self) -> bool:
        return self.clip is not None or self.scaling is not None

    def is_known(self, update: int, part: int) -> bool:
        """Whether the norm of a part's group is known without waiting."""
        return all(self.board.has(Entry(update, share.part)) for share in self.groups[part])

    def norm(self, update: int, part: int) -> Tensor:
        """As torch does: the norm of the norms of all weights, in model order."""
        group = self.groups[part]
        found: dict[int, float] = {}
        for share in group:
            found |= self.board.wait(Entry(update, share.part), share.device)
        dtype = reduce(torch.promote_types, (share.dtype for share in group))
        norms = torch.tensor([found[place] for place in sorted(found)], dtype=torch.float64)
        norm: Tensor = torch.linalg.vector_norm(norms.to(dtype))
        self.norms[part] = norm
        return norm

    def bad_loss(self, update: int) -> str | None:
        """What is wrong with the losses of an update, if anybody wants to know."""
        if self.nonfinite == "ignore":
            return None
        losses = torch.tensor(self.ledger.wait(self.pages[update]), dtype=torch.float64)
        return (
            None if torch.isfinite(losses).all() else f"the loss of update {update} is not finite"
        )

    def rate(self, stage: int, update: int) -> float:
        """What a stage's learning rate is multiplied by."""
        lag = self.versions.lag(stage, update - self.origin)
        if self.temper is None or lag < 1:
            return 1.0
        return float(lag ** (min(update / self.temper, 1) - 1))

    def scale(self, update: int) -> float:
        """How much the losses of an update are enlarged, by the updates that its weights know."""
        if self.scaling is None:
            return 1.0
        known = self.origin + self.versions.oldest(update - self.origin)
        while self.scaling.known < known:
            before = self.scaling.known
            norms = [self.norm(before, part) for part in self.groups]
            self.scaling.add(is_good=bool(torch.isfinite(torch.stack(norms)).all()))
        return self.scaling.behind(known)

    def forget(self, before: int) -> None:
        """Drop what is known of updates that are over everywhere."""
        self.board.forget(before)
        for update in [update for update in self.pages if update < before]:
            del self.pages[update]


def rules_of(
    program: Program,
    stages: Sequence[nn.Module],
    ties: Sequence[Sequence[End]],
    world: World,
    scopes: Scopes,
) -> Rules:
    """What updates go by; refused where the program cannot have it so."""
    clip, clip_by, nonfinite, delay = scopes
    learning = [ends for ends in ties if _weight(stages, ends[0]).requires_grad]
    check_ties(program, learning)
    _check_without_stash(program, stages, delay)
    _check_ties_without_stash(program, learning)
    groups: dict[int, list[Share]] = {}
    if clip is not None or delay.scale is not None:
        for members in scoped(program, clip_by):
            shares = _shares(program, stages, ties, members)
            groups |= {share.part: shares for share in shares}
    scaling = scaling_of(delay.scale)
    is_alone = len(groups) > 1 and all(len(shares) == 1 for shares in groups.values())
    if scaling is not None and scaling.is_changing and is_alone:
        raise InputError(
            f"the scale of {program.name} cannot change, as no norm is known in time; give a number"
        )
    return Rules(
        board=world.board,
        ledger=world.ledger,
        versions=Versions(program),
        groups=groups,
        clip=clip,
        nonfinite=nonfinite,
        temper=delay.temper,
        scaling=scaling,
    )


def _check_without_stash(program: Program, stages: Sequence[nn.Module], delay: Delay) -> None:
    """Refuse what a backward with newer weights than its forward had cannot do."""
    if program.is_stashing:
        return
    if any(is_compiled(module) for stage in stages for module in stage.modules()):
        raise InputError(
            f"{program.name} stashes nothing: its backwards look up newer weights, which a compiled"
            f" stage does not do. Use stages as they are, or a schedule that stashes"
        )
    if delay.predict and (program.actions.kind == Kind.R).any():
        raise InputError(
            f"{program.name} stashes nothing and is recomputed: its backwards cannot start from"
            f" predicted forwards; leave out one of the two"
        )


def _check_ties_without_stash(program: Program, ties: Sequence[Sequence[End]]) -> None:
    """Refuse a weight of which one stage would need a version that another no longer has."""
    for ends in ties if not program.is_stashing else ():
        raise InputError(
            f"{ends[0].name} of stage {ends[0].stage} is tied to {ends[-1].name} of stage"
            f" {ends[-1].stage}, and {program.name} stashes nothing: the two would use different"
            f" versions of it. Use a schedule that stashes, or keep them apart"
        )


def _shares(
    program: Program,
    stages: Sequence[nn.Module],
    ties: Sequence[Sequence[End]],
    members: Sequence[int],
) -> list[Share]:
    """The parts of these stages: their own weights, and tied ones that they are the first of."""
    devices, tied = program.placement.pipes[0], {end for ends in ties for end in ends}
    types = {stage: _dtype(stages[stage], stage, tied) for stage in members}
    own = [Share(s, devices[s], dtype) for s, dtype in types.items() if dtype is not None]
    return own + [
        Share(program.stages + number, devices[home.stage], _weight(stages, home).dtype)
        for number, (home, *_) in enumerate(ties)
        if home.stage in members and _weight(stages, home).requires_grad
    ]


def _dtype(stage: nn.Module, index: int, tied: set[End]) -> torch.dtype | None:
    """The type of a stage's own weights, if it has any that learn."""
    found = [
        weight.dtype
        for name, weight in stage.named_parameters()
        if weight.requires_grad and End(index, name) not in tied
    ]
    return reduce(torch.promote_types, found) if found else None


def _weight(stages: Sequence[nn.Module], end: End) -> nn.Parameter:
    return stages[end.stage].get_parameter(end.name)


def scaling_of(scale: Scale | float | None) -> Scaling | None:
    """A number is a scale that never changes."""
    if scale is None:
        return None
    return Scaling(scale if isinstance(scale, Scale) else Scale(scale, interval=None))

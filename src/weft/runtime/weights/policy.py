"""Policy: what all updates of a process go by: whose norms, which losses, rates and scales."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from weft.errors import NonfiniteError
from weft.runtime.ranks.losses import LossReports, RunLosses
from weft.runtime.weights.norms import Measured, Norms
from weft.runtime.weights.options import Updating
from weft.runtime.weights.peers import Peers
from weft.runtime.weights.scaling import Scaling, scaling_of
from weft.runtime.weights.staleness import Versions

REMEDY = "nonfinite='skip' leaves such updates out"


class Sender(NamedTuple):
    """Who sends the norms of a parameter group, and which type its weights have."""

    group: int
    device: int
    dtype: torch.dtype


class Verdict(NamedTuple):
    """Whether an update is made, the norm of its gradients, and what they are multiplied by."""

    is_good: bool
    norm: Tensor | None = None
    factor: Tensor | None = None


class Policy:
    """What all updates of a process go by; an update is counted with the batch it belongs to.

    `senders` has, for each parameter group, all that share its norm. `origin` is the update at
    which the program began.
    """

    def __init__(
        self,
        updating: Updating,
        versions: Versions,
        senders: Mapping[int, Sequence[Sender]],
        norms: Norms,
        reports: LossReports,
        peers: Peers,
    ) -> None:
        self.updating, self.versions, self.senders = updating, versions, senders
        self._measured, self._reported, self._peers = norms, reports, peers
        self.scaling = scaling_of(updating.scale)
        self.origin = 0
        self.keeps_gradients = updating.factories.optimizer is None
        self.refusal: str | None = None  # why no weight of a synchronous step was changed
        self.norms: dict[int, Tensor] = {}  # the last of each parameter group
        self._losses: dict[int, RunLosses] = {}  # by update
        self._carried: set[int] = set()
        self._verdicts: dict[tuple[int, int], Verdict] = {}  # by update and first sender

    def begin(self, update: int, losses: RunLosses, *, is_carried: bool) -> None:
        """Take the batch of an update; a carried one is added to the next."""
        self._losses[update] = losses
        self.refusal = None
        if is_carried:
            self._carried.add(update)

    def carry(self, update: int) -> None:
        """Add the gradients of an update, which was made elsewhere, to those of the next."""
        self._carried.add(update)

    def give_up(self, update: int) -> bool:
        """A step has failed, and may be taken again; whether gradients waited for its update."""
        self._carried.discard(update)
        return not self.keeps_gradients and update - 1 in self._carried

    def is_carried(self, update: int) -> bool:
        """Whether the gradients of an update are added to those of the next."""
        return update in self._carried and not self.keeps_gradients

    def is_measuring(self, update: int) -> bool:
        """Whether norms matter; to a user who wants gradients as they are, they do not."""
        return bool(self.senders) and update not in self._carried

    def send(self, update: int, group: int, places: Sequence[int], norms: Tensor) -> None:
        """Let all ranks know what the gradients of a group measure."""
        self._measured.send(Measured(update, group), places, norms)

    def verdict(self, update: int, group: int, stage: int | None = None) -> Verdict:
        """What becomes of an update; where a norm is shared, the same for all."""
        senders = self.senders.get(group, ())
        key = update, senders[0].group if senders else -1
        if key not in self._verdicts:
            self._verdicts[key] = self._judged(update, group, stage)
        found = self._verdicts[key]
        if found.norm is not None:
            self.norms[group] = found.norm
        return found

    def _judged(self, update: int, group: int, stage: int | None) -> Verdict:
        if update in self._carried:
            return Verdict(is_good=True)
        reason, norm, is_overflow = self._wrong_loss(update), None, False
        if reason is None and self.is_measuring(update) and group in self.senders:
            norm = self.norm(update, group)
            if not torch.isfinite(norm):
                is_overflow = self.scaling is not None
                reason = f"the norm of the gradients of step {update + 1} is {norm:g}"
        nonfinite = self.updating.nonfinite
        if reason is None or (nonfinite == "ignore" and not is_overflow):
            return Verdict(is_good=True, norm=norm, factor=self._factor(norm))
        if nonfinite == "stop" and not is_overflow:
            self._stop(reason, stage)
        return Verdict(is_good=False, norm=norm)

    def _stop(self, reason: str, stage: int | None) -> None:
        """A synchronous step ends before it says so: no weight of any rank is changed then."""
        if not self.versions.is_stale:
            self.refusal = f"{reason}; no weight was changed. {REMEDY}"
            return
        raise NonfiniteError(f"{reason}; stage {stage} was not changed. {REMEDY}")

    def _factor(self, norm: Tensor | None) -> Tensor | None:
        """As torch clips."""
        if norm is None or self.updating.clip is None:
            return None
        return torch.clamp(self.updating.clip / (norm + 1e-6), max=1.0)

    def norm(self, update: int, group: int) -> Tensor:
        """As torch does: the norm of the norms of all weights, in model order."""
        senders, found = self.senders[group], dict[int, float]()
        for sender in senders:
            found |= self._measured.wait(Measured(update, sender.group), sender.device)
        dtype = reduce(torch.promote_types, (sender.dtype for sender in senders))
        found = self._peers.norms(found, dtype)
        in_order = [found[place] for place in sorted(found)]
        norms = torch.tensor(in_order, dtype=torch.float64, device="cpu")
        norm: Tensor = torch.linalg.vector_norm(norms.to(dtype))
        return norm

    def _wrong_loss(self, update: int) -> str | None:
        """What is wrong with a loss here or where others hold shards of the same weights."""
        if self.updating.nonfinite == "ignore":
            return None
        reason = self._bad_loss(update)
        if self._peers.any(is_so=reason is not None) and reason is None:
            return f"the loss of step {update + 1} is not finite in another pipeline of the mesh"
        return reason

    def _bad_loss(self, update: int) -> str | None:
        """What is wrong with the losses of an update."""
        return self._bad_among([*sorted(self._piled(update)), update])

    def bad_in_piled(self, update: int) -> str | None:
        """What is wrong with losses whose gradients wait for this update, if that matters."""
        is_ignored = self.updating.nonfinite == "ignore"
        return None if is_ignored else self._bad_among(sorted(self._piled(update)))

    def _bad_among(self, steps: Sequence[int]) -> str | None:
        for step in steps:
            wrong = _described(self._reported.wait(self._losses[step]))
            if wrong is not None:
                return f"the loss of step {step + 1} is {wrong}"
        return None

    def _piled(self, update: int) -> set[int]:
        """Updates whose gradients were added to those of this one."""
        found = set[int]()
        while update - 1 in self._carried:
            update -= 1
            found.add(update)
        return found & self._losses.keys()

    def rate(self, stage: int, update: int) -> float:
        """What a stage's learning rate is multiplied by."""
        temper = None if self.updating.staleness is None else self.updating.staleness.temper
        if temper is None:
            return 1.0
        stale = self.versions.staleness(stage, update - self.origin)
        return float(stale ** (min(update / temper, 1) - 1)) if stale >= 1 else 1.0

    def scale(self, update: int) -> float:
        """By how much the losses of an update are enlarged, by the updates its weights know."""
        if self.scaling is None:
            return 1.0
        known = self.origin + self.versions.oldest(update - self.origin)
        self._learn(self.scaling, known)
        return self.scaling.after(known)

    def settle(self, updates: int) -> None:
        """Learn how all updates went that were made."""
        if self.scaling is not None:
            self._learn(self.scaling, updates)

    def _learn(self, scaling: Scaling, known: int) -> None:
        """Let a scale know how the first updates went."""
        while scaling.known < known:
            before = scaling.known
            if before in self._carried:
                scaling.keep()
                continue
            norms = [self.norm(before, group) for group in self.senders]
            scaling.add(is_good=bool(torch.isfinite(torch.stack(norms)).all()))

    def resume(self, updates: int) -> None:
        """Forget all updates of before: as many were made elsewhere."""
        self._losses.clear()
        self._carried.clear()
        self._verdicts.clear()
        self.norms.clear()
        self.refusal = None
        self._measured.restart()
        if self.scaling is not None:
            self.scaling.resume(updates, [(0, self.scaling.after(0))], 0)

    def forget(self, before: int) -> None:
        """Drop what is known of updates that are over everywhere in this process."""
        if self.scaling is not None:
            before = min(before, self.scaling.known)
        self._measured.forget(before)
        while before - 1 in self._carried:  # its losses are looked at with the next ones
            before -= 1
        self._losses = {update: one for update, one in self._losses.items() if update >= before}
        self._carried = {update for update in self._carried if update >= before}
        self._verdicts = {key: one for key, one in self._verdicts.items() if key[0] >= before}


def _described(losses: Sequence[float]) -> str | None:
    """What is wrong with a loss, and by which microbatches; None if it is finite."""
    total = math.fsum(losses) if all(map(math.isfinite, losses)) else sum(losses)
    if math.isfinite(total):
        return None
    bad = [index for index, loss in enumerate(losses) if not math.isfinite(loss)]
    which = ", ".join(map(str, bad[:8])) + (" ..." if len(bad) > 8 else "")
    return f"{total:g}" + (f", by microbatch {which}" if bad else "")

"""Progress: what a search has found so far."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from weft.plan.bench import Bench
from weft.plan.proposal import Proposal, proposed, ranked
from weft.plan.trial import Trial
from weft.request import Plan

KEPT = 20  # trials that are timed in full
NEAR = 1.15  # times as long as the fastest: another cut may make up for it


@dataclass(frozen=True)
class Found:
    """What a search has found so far.

    proposals  that fit, the fastest first
    wanted     trials that do not fit and would be faster than the first of them
    tried      candidates that were simulated, of all that there are
    hopeless   candidates that cannot fit, or cannot be faster than those that are kept
    actions    that were simulated
    is_done    whether the search has ended
    """

    proposals: tuple[Proposal, ...] = ()
    wanted: tuple[Trial, ...] = ()
    tried: int = 0
    hopeless: int = 0
    candidates: int = 0
    actions: int = 0
    is_done: bool = False

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of all proposals, in the same order."""
        return tuple(proposal.plan for proposal in self.proposals)


@dataclass
class Progress:
    """The best trial of every layout and schedule, and the proposals that were made of them.

    others  trials that fit and are not, with other microbatches or stages on a device
    """

    bench: Bench
    trials: dict[tuple[object, ...], Trial] = field(default_factory=dict)
    others: list[Trial] = field(default_factory=list)
    wanted: list[Trial] = field(default_factory=list)
    proposals: dict[tuple[object, ...], Proposal] = field(default_factory=dict)
    counts: Found = field(default_factory=Found)

    @property
    def limit(self) -> float:
        """What a trial has to beat to be kept."""
        seconds = sorted(trial.seconds for trial in self.trials.values())
        return seconds[KEPT - 1] if len(seconds) >= KEPT else inf

    @property
    def fastest(self) -> float:
        return min((trial.seconds for trial in self.trials.values()), default=inf)

    @property
    def best(self) -> list[Trial]:
        """Those that are kept, the fastest first."""
        return sorted(self.trials.values(), key=lambda trial: trial.order)[:KEPT]

    @property
    def promising(self) -> list[Trial]:
        """Those that are kept, then others that are nearly as fast, as many at most."""
        near = [trial for trial in self.others if trial.seconds <= NEAR * self.fastest]
        return [*self.best, *sorted(near, key=lambda trial: trial.order)[:KEPT]]

    @property
    def best_proposed(self) -> list[Trial]:
        """The trials of all proposals, the fastest first."""
        found = sorted(self.proposals.values(), key=lambda proposal: proposal.order)
        return [proposal.trial for proposal in found]

    def has_spent(self, share: float) -> bool:
        """Whether this share of the effort is used up."""
        return self.bench.actions >= share * self.bench.question.effort

    def add(self, trial: Trial) -> bool:
        """Whether it is the fastest of all so far."""
        key = trial.candidate.key
        known = self.trials.get(key)
        is_first = all(trial.order < other.order for other in self.trials.values())
        if known is None or trial.order < known.order:
            self.trials[key] = trial
            self.others += [] if known is None else [known]
        else:
            self.others.append(trial)
        return is_first

    def propose(self, trial: Trial) -> bool:
        """Whether a trial in full is better than what was proposed of its layout and schedule."""
        known = self.proposals.get(trial.candidate.key)
        if known is not None and known.order <= trial.order:
            return False
        self.proposals[trial.candidate.key] = proposed(self.bench, trial)
        return True

    def count(self, **more: int) -> None:
        changes = {name: getattr(self.counts, name) + number for name, number in more.items()}
        self.counts = replace(self.counts, **changes)

    def found(self, *, is_done: bool = False) -> Found:
        """What there is so far: proposals, or of what was tried briefly the best."""
        made = self.proposals.values() or [proposed(self.bench, one) for one in self.best]
        proposals = ranked(_distinct([*made]))
        fastest = proposals[0].trial.seconds if proposals else inf
        wanted = [trial for trial in self.wanted if trial.seconds < fastest]
        return replace(
            self.counts,
            proposals=proposals,
            wanted=tuple(sorted(wanted, key=lambda trial: (trial.peak, trial.seconds))),
            actions=self.bench.actions,
            is_done=is_done,
        )


def _distinct(proposals: list[Proposal]) -> list[Proposal]:
    """Without variants that are the same as another for their shape."""
    found: dict[object, Proposal] = {}
    for one in sorted(proposals, key=lambda one: one.trial.candidate.shape.variant):
        found.setdefault((one.key[:-1], one.order), one)
    return [*found.values()]

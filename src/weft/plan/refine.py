"""Refining: what a scan has kept gets better cuts, and cuts other schedules and orders.

improved   layers moved between the stages of a trial while that makes its step shorter
retried    all schedules of the best divisions, by the cuts that were found there, with every
           relief: another may suit uneven stages better than what was best for the seed
ordered    orders that no schedule has, synthesised for the best divisions
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from weft.errors import InputError, ProgramError
from weft.ir.placement import Placement
from weft.plan.bench import Bench
from weft.plan.chain import Layers
from weft.plan.orders import placements, synthesised
from weft.plan.partition import Score, cuts
from weft.plan.progress import Progress
from weft.plan.space import Space
from weft.plan.trial import COPYING, Ease, Trial, Trier, kinds_of_recompute

ORDERED = 2  # divisions for which orders are synthesised
RETRIED = 3  # cuts that other schedules of their divisions are tried with
REFINED = 0.8  # of the effort: what is left is for schedules that are tried again
MOVES = 40  # cuts that are tried for one proposal
FEW_MOVES = 12  # the same for a schedule that is tried again
NEARLY = 1.03  # times as long as the best by the same cut: worth cuts of its own
OFFLOADED = 0.04  # of the effort: what is offloaded is found out anew for every cut


def improved(bench: Bench, trial: Trial, moves: int = MOVES) -> Trial | None:
    """The trial in full with layers moved between stages; None where no cut is better."""
    trier, whole = (Trier(bench, trial.candidate, is_full=is_full) for is_full in (False, True))
    pipes = _placement(trier).pipes
    eased: dict[Layers, Trial] = {}

    def judge(layers: Layers) -> Score:
        ease = _ease(trier, layers, trial.ease)
        if ease is None:
            return inf, 0.0
        found = eased[layers] = trier.tried(layers, ease)
        return inf if found.peak > trier.capacity else found.order[0], found.peak

    if trial.ease.is_offloading:
        most = int(OFFLOADED * bench.question.effort) // (COPYING * trier.actions)
        moves = min(moves, most)
    chain = trier.chain(is_selective=trial.ease.is_selective)
    layers, score = cuts(chain, pipes, judge, trials=moves, known=trial.layers)
    if layers == trial.layers or score[0] == inf:
        return None
    return _in_full(whole, eased[layers])


def _ease(trier: Trier, layers: Layers, ease: Ease) -> Ease | None:
    """The same relief for another cut, with as few stages recomputed as make it fit."""
    if trier.bench.question.choices.recompute != "auto" or ease.is_offloading:
        return ease
    return trier.fitting(layers, replace(ease, recomputed=frozenset()))


def _in_full(whole: Trier, trial: Trial) -> Trial | None:
    """With every microbatch simulated; None where it does not fit then."""
    found = trial if trial.is_full else whole.tried(trial.layers, trial.ease)
    return found if found.peak <= whole.capacity else None


def retried(progress: Progress) -> Iterator[Trial]:
    """Trials in full by the cuts of the best, and by cuts near these; the fastest first."""
    bench = progress.bench
    for known in _cuts(progress):
        for trial in sorted(_others(bench, known), key=lambda one: one.order):
            if progress.has_spent(1):
                return
            full = _in_full(Trier(bench, trial.candidate, is_full=True), trial)
            better = improved(bench, trial, FEW_MOVES)
            yield from (one for one in (full, better) if one is not None)


def _others(bench: Bench, known: Trial) -> Iterator[Trial]:
    """All with the division and the cut of a trial that has another relief, or is as fast."""
    for candidate in Space(bench.question).on(known.candidate.division):
        if candidate.shape.stages == len(known.layers):
            is_own = candidate.key == known.candidate.key
            most = inf if is_own else NEARLY * known.seconds
            found = _by_cut(Trier(bench, candidate), known)
            yield from (trial for trial in found if trial.seconds <= most)


def _cuts(progress: Progress) -> list[Trial]:
    """The fastest proposals, each division and cut once."""
    found: dict[object, Trial] = {}
    for trial in progress.best_proposed:
        if not trial.ease.is_offloading:
            found.setdefault((trial.candidate.division.key, trial.layers), trial)
    return [*found.values()][:RETRIED]


def _by_cut(trier: Trier, known: Trial) -> Iterator[Trial]:
    """A candidate with the cut of a trial and every relief but its own, where that fits.

    Nothing where it places stages on other devices.
    """
    try:
        if _placement(trier) != _placement(Trier(trier.bench, known.candidate)):
            return
        for is_selective in kinds_of_recompute(trier):
            ease = _ease(trier, known.layers, replace(known.ease, is_selective=is_selective))
            if ease is None or (trier.candidate.key, ease) == (known.candidate.key, known.ease):
                continue
            found = trier.tried(known.layers, ease)
            if found.peak <= trier.capacity:
                yield found
    except (InputError, ProgramError):
        return  # a variant that has no order for this shape


def _placement(trier: Trier) -> Placement:
    return trier.ready(trier.lengths[0]).program.placement


def ordered(progress: Progress) -> Iterator[Trial]:
    """Orders that no schedule has, where they are faster than all that do on their division."""
    bench = progress.bench
    if bench.question.choices.schedule:
        return
    best: dict[tuple[int, ...], Trial] = {}
    for trial in progress.best_proposed:
        best.setdefault(trial.candidate.division.key, trial)
    for known in [*best.values()][:ORDERED]:
        division, ease = known.candidate.division, replace(known.ease, recomputed=frozenset())
        capacity = Trier(bench, known.candidate).capacity
        if division.devices == 1 or ease.is_offloading or capacity == inf:
            continue
        for placement in placements(division, Space(bench.question).blocks):
            found = synthesised(bench, division, placement, ease, capacity)
            if found is not None and found.peak <= capacity and found.order < known.order:
                known = found
                yield found

"""The scan: every candidate that may fit and may be faster, briefly simulated, likeliest first.

Copies of a stage may share the state of the optimizer, or each may keep all of it. Sharing takes
less memory, so that all are tried with it; without it weights need no gathering at the end of a
step, and the best are tried so as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, log

from weft.errors import InputError, ProgramError
from weft.plan.bench import Bench
from weft.plan.bounds import claimed_seconds, estimated_seconds, least_bytes, least_seconds
from weft.plan.progress import Progress
from weft.plan.room import roomier_ways
from weft.plan.space import Candidate, Space
from weft.plan.trial import Ease, Trial, Trier, eases

SCAN = 0.4  # of the effort
NEARLY = 1.04  # times as long by an estimate: as likely
MOST_OFFLOADED = 30_000  # actions of a trial with offloading, unless nothing else fits
SLACK = 1.02  # a bound that much above the worst that is kept is no hope


def scan(progress: Progress) -> Iterator[Trial]:
    """Trials that are faster than all before; others are kept if they are good."""
    space = Space(progress.bench.question)
    for _, bound, candidate in _queue(progress, space):
        if progress.has_spent(SCAN):
            break
        if bound > SLACK * progress.limit:
            progress.count(hopeless=1)
            continue
        progress.count(tried=1)
        for trial in tried(progress, candidate):
            if progress.add(trial):
                yield trial
    yield from _with_whole_optimizer(progress, space)


def _with_whole_optimizer(progress: Progress, space: Space) -> Iterator[Trial]:
    """The most promising ones again, where every copy keeps all of the optimizer's state."""
    for trial in progress.promising:
        whole = space.with_whole_optimizer(trial.candidate)
        gathering = Trier(progress.bench, trial.candidate).gathering(trial.layers)
        if whole is not None and trial.seconds - gathering <= SLACK * progress.limit:
            for other in tried(progress, whole, trial.seconds):
                if progress.add(other):
                    yield other


def _queue(progress: Progress, space: Space) -> list[tuple[float, float, Candidate]]:
    """Candidates that may fit, the likeliest to be fast first, with their bounds."""
    found: list[tuple[float, float, Candidate]] = []
    bench = progress.bench
    for division in space.divisions:
        chain = bench.chain(division)
        least = least_seconds(chain, division)
        for candidate in space.on(division):
            progress.count(candidates=1)
            if may_fit(bench, candidate):
                bound = max(least, claimed_seconds(chain, candidate))
                found.append((estimated_seconds(chain, candidate), bound, candidate))
            else:
                progress.count(hopeless=1)
    return sorted(found, key=_turn)


def _turn(entry: tuple[float, float, Candidate]) -> tuple[float, int, float]:
    """Of candidates that are nearly as likely, those that are simulated soonest come first."""
    estimate, _, candidate = entry
    shape = candidate.shape
    level = round(log(estimate) / log(NEARLY)) if 0 < estimate < inf else estimate
    return level, shape.devices * shape.stages, estimate


def may_fit(bench: Bench, candidate: Candidate) -> bool:
    """Whether there may be memory enough, however it is relieved."""
    question, division = bench.question, candidate.division
    plain = bench.chain(division)
    if least_bytes(plain, candidate) <= plain.blocks.memory.capacity:
        return True
    may_be_selective = question.choices.recompute in ("auto", "selective")
    if question.model is None or not may_be_selective:
        return False
    leaner = bench.chain(division, is_selective=True)
    return least_bytes(leaner, candidate) <= leaner.blocks.memory.capacity


def tried(progress: Progress, candidate: Candidate, limit: float = inf) -> Iterator[Trial]:
    """What a candidate comes to: plain where it fits, else with what makes it fit.

    Nothing where it takes longer than the limit even without relief.
    """
    trier = Trier(progress.bench, candidate)
    choices = progress.bench.question.choices
    may_be_plain = choices.recompute in ("auto", "none")
    try:
        layers = trier.seed
        plain = trier.tried(layers, Ease())
        if plain.seconds > min(limit, SLACK * progress.limit):
            return
        if plain.peak <= trier.capacity and may_be_plain:
            yield plain
            return
        if may_be_plain:
            progress.wanted.append(plain)
        for other, ease in roomier_ways(trier, layers):
            trial = trier.tried(other, ease)
            if trial.peak <= trier.capacity:
                yield trial
        for ease in eases(trier, layers):
            is_long = trier.actions > MOST_OFFLOADED and bool(progress.trials)
            if ease.is_offloading and (is_long or plain.seconds >= progress.fastest):
                continue  # which takes long to find out
            trial = trier.tried(layers, ease)
            if trial.peak <= trier.capacity:
                yield trial
    except (InputError, ProgramError):
        return  # a variant that has no order for this shape

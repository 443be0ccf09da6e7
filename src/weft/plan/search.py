"""The search: candidates tried, the likeliest first; the best of them timed in full and improved.

    scan      every candidate that may fit and may be faster, by its seed cut, briefly simulated
    refine    the best twenty in full; layers moved between their stages while that helps; then
              other schedules of the same divisions, by the cuts that were found
    order     orders that no schedule has, synthesised for the best divisions of the cluster
    explain   where the time of each goes, and how it bears times that are off

Whoever asks gets what was found so far, again and better, and may stop at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from weft.plan.bench import Bench
from weft.plan.progress import Found, Progress
from weft.plan.proposal import explained
from weft.plan.question import Question
from weft.plan.refine import REFINED, improved, ordered, retried
from weft.plan.scan import scan
from weft.plan.trial import Trial, Trier


def search(question: Question, watch: Callable[[Found], None] = lambda found: None) -> Found:
    """The best plans; `watch` is called with what was found so far, whenever that is better."""
    found = Found()
    for found in searching(question):
        watch(found)
    return found


def searching(question: Question) -> Iterator[Found]:
    """What was found so far, ever better; the last is all that the effort allows."""
    progress = Progress(Bench(question))
    for _ in scan(progress):
        yield progress.found()
    _propose_in_full(progress)
    yield progress.found()
    for steps in (_improved, retried, ordered):
        for trial in steps(progress):
            if progress.propose(trial):
                yield progress.found()
    for key, proposal in progress.proposals.items():
        progress.proposals[key] = explained(proposal)
    yield progress.found(is_done=True)


def _propose_in_full(progress: Progress) -> None:
    """Propose the best trials, with every microbatch simulated, if they still fit."""
    for trial in progress.best:
        whole = Trier(progress.bench, trial.candidate, is_full=True)
        full = trial if trial.is_full else whole.tried(trial.layers, trial.ease)
        if full.peak <= whole.capacity:
            progress.propose(full)


def _improved(progress: Progress) -> Iterator[Trial]:
    """The most promising trials with better cuts, while there is effort left."""
    for trial in progress.promising:
        if progress.has_spent(REFINED):
            return
        better = improved(progress.bench, trial)
        if better is not None:
            yield better

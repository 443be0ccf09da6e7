"""A run on record: trained, with its folder written by the first rank as it goes on."""

from __future__ import annotations

from functools import partial

from weft.cost import Cost
from weft.request import Saving
from weft.train.folder import RunFiles, RunFolder
from weft.train.job import NEVER, trained
from weft.train.keeper import is_first
from weft.train.outcome import News, Outcome, Watch
from weft.train.settings import Settings


def recorded(
    settings: Settings,
    files: RunFiles | None,
    watch: Watch,
    *,
    saving: Saving = NEVER,
    cost: Cost | None = None,
) -> Outcome:
    """Train, and write the folder of the run, if there is one; every rank calls this.

    `watch` is called with all news but outcomes. The outcome of rank 0 has the steps before it was
    resumed.
    """
    saves = None if files is None else files.saves
    work = partial(trained, settings, cost=cost, saves=saves, saving=saving)
    if files is None or not is_first():
        return work(_without_outcomes(watch))
    with RunFolder(files) as folder:

        def both(news: News) -> None:
            folder.add(news)
            _without_outcomes(watch)(news)

        return folder.whole(work(both))


def _without_outcomes(watch: Watch) -> Watch:
    """The same, called with what is small."""

    def watched(news: News) -> None:
        if not isinstance(news, Outcome):
            watch(news)

    return watched

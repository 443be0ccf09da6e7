"""The whole explanation of a timeline, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.explain.account import Account, accounts, by_cause
from weft.explain.costs import Change, changes
from weft.explain.holding import Holding, holdings
from weft.explain.options import Option, helpful, recomputed
from weft.explain.path import Path, path
from weft.simulate import Steady
from weft.timeline import Cause, Timeline


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where time and memory go, and what would help.

    settled  what an asynchronous run settles into
    causes   idle seconds of all devices by cause, the largest first
    tried    how many other schedules, variants and ways to make them fit were simulated
    better   the best of them, by what they are best at
    larger   the same schedule with twice the microbatches
    leaner   the same program with everything recomputed
    """

    timeline: Timeline
    settled: Steady | None
    accounts: tuple[Account, ...]
    causes: dict[Cause, float]
    path: Path
    holdings: tuple[Holding, ...]
    changes: tuple[Change, ...]
    tried: int
    better: dict[str, Option]
    larger: Option | None
    leaner: Option | None


def explain(
    timeline: Timeline,
    *,
    options: Sequence[Option] = (),
    larger: Option | None = None,
    settled: Steady | None = None,
) -> Explanation:
    """Explain a timeline, beside options that were tried."""
    return Explanation(
        timeline=timeline,
        settled=settled,
        accounts=accounts(timeline),
        causes=by_cause(timeline.idle),
        path=path(timeline),
        holdings=holdings(timeline),
        changes=tuple(changes(timeline)),
        tried=len(options),
        better=helpful(timeline, options),
        larger=larger,
        leaner=recomputed(timeline),
    )

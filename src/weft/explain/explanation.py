"""The whole explanation of a timeline, as data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weft.explain.account import Account, accounts, by_cause
from weft.explain.costs import Change, changes
from weft.explain.holding import Holding, holdings
from weft.explain.options import Option, helpful, recomputed
from weft.explain.path import Path, path
from weft.timeline import Cause, Timeline


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where time and memory go, and what would help.

    causes   idle seconds of all devices by cause, the largest first
    better   the best of other schedules, by what they are best at
    larger   the same schedule with twice the microbatches
    leaner   the same program with everything recomputed
    """

    timeline: Timeline
    accounts: tuple[Account, ...]
    causes: dict[Cause, float]
    path: Path
    holdings: tuple[Holding, ...]
    changes: tuple[Change, ...]
    better: dict[str, Option]
    larger: Option | None
    leaner: Option | None


def explain(
    timeline: Timeline, *, options: Iterable[Option] = (), larger: Option | None = None
) -> Explanation:
    """Explain a timeline, beside options that were tried."""
    return Explanation(
        timeline=timeline,
        accounts=accounts(timeline),
        causes=by_cause(timeline.idle),
        path=path(timeline),
        holdings=holdings(timeline),
        changes=tuple(changes(timeline)),
        better=helpful(timeline, options),
        larger=larger,
        leaner=recomputed(timeline),
    )

"""The judge over real processes: one device each, several cases in the same processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.runtime.habits.case import Case
from tests.runtime.habits.contenders import Trace, pipeline, plain
from tests.runtime.habits.judge import Verdict, compared, failure
from tests.runtime.ranks import run
from weft.errors import RankError


def judge_in_ranks(cases: Sequence[Case], transport: str) -> list[Verdict]:
    """Cases that all have as many devices; those that plain torch cannot train are void."""
    wanted = {index: trace for index, case in enumerate(cases) if (trace := _plain(case))}
    tried = [cases[index] for index in wanted]
    by_rank = run(cases[0].plan.devices, _traces, tried, transport)
    verdicts = [Verdict("void")] * len(cases)
    for index, found in zip(wanted, zip(*by_rank, strict=True), strict=True):
        verdicts[index] = _judged(cases[index], found, wanted[index])
    return verdicts


def _plain(case: Case) -> Trace | None:
    try:
        return plain(case)
    except Exception:
        return None


def _traces(cases: Sequence[Case], transport: str) -> list[tuple[Trace, Exception | None]]:
    """In a rank: what it saw of each case, and the error that ended it."""
    found = []
    for case in cases:
        trace, ended = Trace(), None
        try:
            pipeline(case, trace, transport)
        except Exception as error:
            ended = error
        found.append((trace, ended))
    return found


def _judged(case: Case, found: Sequence[Any], wanted: Trace) -> Verdict:
    """All ranks together; where one refuses, the others may say that it did."""
    errors = [error for _, error in found if error is not None]
    first = next((error for error in errors if not isinstance(error, RankError)), None)
    joined = Trace(updates=max(trace.updates for trace, _ in found))
    if errors:
        return failure(first or errors[0], joined)
    for trace, _ in found:
        joined.numbers |= trace.numbers
        joined.modes |= trace.modes
        for name, seen in trace.seen.items():
            joined.seen[name] = joined.seen.get(name, []) + seen
    return compared(case, joined, wanted)

"""The judge on streams: whether a case reads, writes or gives back memory too early on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from tests.runtime.habits.case import Case
from tests.runtime.habits.contenders import Trace, pipeline, plain
from tests.runtime.habits.judge import Verdict, failure, unable
from tests.runtime.watched_device import watched


def judge_on_streams(cases: Sequence[Case]) -> list[Verdict]:
    return [*map(_judged, cases)]


def _judged(case: Case) -> Verdict:
    try:
        plain(case)
    except Exception as error:
        return Verdict("void", (str(error),))
    if reason := unable(case):
        return Verdict("void", (reason,))
    trace = Trace()
    try:
        with watched() as device:
            pipeline(case, trace)
    except Exception as error:
        return failure(case, error, trace)
    return Verdict("wrong", tuple(device.faults)) if device.faults else Verdict("equal")

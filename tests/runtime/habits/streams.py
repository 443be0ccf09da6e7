"""The judge on streams: whether a case reads, writes or gives back memory too early on a GPU.

Offload is left out: on a CPU it takes no part in streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.runtime.habits.case import Case
from tests.runtime.habits.contenders import Trace, pipeline, plain
from tests.runtime.habits.judge import Verdict, failure
from tests.runtime.watched_device import watched


def judge_on_streams(cases: Sequence[Case]) -> list[Verdict]:
    return [_judged(replace(c, training=replace(c.training, offload="none"))) for c in cases]


def _judged(case: Case) -> Verdict:
    try:
        plain(case)
    except Exception as error:
        return Verdict("void", (str(error),))
    trace = Trace()
    try:
        with watched() as device:
            pipeline(case, trace)
    except Exception as error:
        return failure(case, error, trace)
    return Verdict("wrong", tuple(device.faults)) if device.faults else Verdict("equal")

"""What other benchmarks have: ranks, rows, ideal times and a report; strikes and their verdicts."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "runtime"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "survival"))

from alone import Timing, alone, by_events, by_host, ideal_seconds, period
from bench import Estimate, Job, Row, Watch, estimate, init, machine, median, reported, run
from contenders import (
    Contender,
    Samples,
    Turn,
    Work,
    both,
    clear,
    finished,
    meet,
    rounds,
    step_seconds,
    timed,
)
from contenders import Setting as PlainSetting
from leftovers import strays
from strikes import REASON, Strike, fail, kill, note
from verdicts import LATE, UNSAVED, Rank, said

__all__ = [
    "LATE",
    "REASON",
    "UNSAVED",
    "Contender",
    "Estimate",
    "Job",
    "PlainSetting",
    "Rank",
    "Row",
    "Samples",
    "Strike",
    "Timing",
    "Turn",
    "Watch",
    "Work",
    "alone",
    "both",
    "by_events",
    "by_host",
    "clear",
    "estimate",
    "fail",
    "finished",
    "ideal_seconds",
    "init",
    "kill",
    "machine",
    "median",
    "meet",
    "note",
    "period",
    "reported",
    "rounds",
    "run",
    "said",
    "step_seconds",
    "strays",
    "timed",
]

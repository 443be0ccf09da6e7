"""What the benchmarks of the runtime have: ranks, rows, contenders, ideal times and a report."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "runtime"))

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

__all__ = [
    "Contender",
    "Estimate",
    "Job",
    "PlainSetting",
    "Row",
    "Samples",
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
    "finished",
    "ideal_seconds",
    "init",
    "machine",
    "median",
    "meet",
    "period",
    "reported",
    "rounds",
    "run",
    "step_seconds",
    "timed",
]

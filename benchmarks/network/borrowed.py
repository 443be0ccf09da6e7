"""What the benchmarks of the runtime have: ranks, rows, contenders and a report."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "runtime"))

from bench import Row, Watch, estimate, hurry, median, reported, run
from contenders import (
    Contender,
    Samples,
    Setting,
    Turn,
    Work,
    both,
    meet,
    rounds,
    step_seconds,
    timed,
)
from known import Sleeping

__all__ = [
    "Contender",
    "Row",
    "Samples",
    "Setting",
    "Sleeping",
    "Turn",
    "Watch",
    "Work",
    "both",
    "estimate",
    "hurry",
    "median",
    "meet",
    "reported",
    "rounds",
    "run",
    "step_seconds",
    "timed",
]

"""What the benchmarks of the runtime have: ranks, rows, statistics and a report."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "runtime"))

from bench import Row, Watch, estimate, reported, run
from contenders import WARM_UP

__all__ = ["WARM_UP", "Row", "Watch", "estimate", "reported", "run"]

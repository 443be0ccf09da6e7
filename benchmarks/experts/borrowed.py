"""What the benchmarks of the runtime have: ranks, statistics and where they ran."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "runtime"))

from bench import Watch, estimate, machine, median, run
from contenders import WARM_UP, meet
from napping import SlowReturn, nap

__all__ = ["WARM_UP", "SlowReturn", "Watch", "estimate", "machine", "median", "meet", "nap", "run"]

"""Ranks: processes of this machine, on its cores or with a part of one GPU each."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "runtime"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "gpu"))

from bench import Watch, machine, run
from common import heads_of, measured
from contenders import finished, meet
from napping import SlowReturn, nap

__all__ = [
    "SlowReturn",
    "Watch",
    "finished",
    "heads_of",
    "machine",
    "measured",
    "meet",
    "nap",
    "run",
]

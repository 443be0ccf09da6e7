"""What one part of Weft can be used without."""

from __future__ import annotations

import subprocess
import sys


def test_programs_are_timed_proved_and_run_without_what_takes_long_to_import() -> None:
    """A rank that walks a program needs no schedule, and few need DTensors and checkpoints."""
    others = ("weft.schedules", "torch.distributed.tensor", "torch.distributed.checkpoint")
    statement = (
        "import sys, weft.simulate, weft.verify, weft.lower, weft.runtime; "
        f"print([name for name in sys.modules if name.startswith({others})])"
    )
    found = subprocess.run(
        [sys.executable, "-c", statement], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"

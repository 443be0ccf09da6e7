"""What one part of Weft can be used without."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["weft.simulate", "weft.verify", "weft.lower", "weft.runtime"])
def test_programs_are_timed_and_proved_without_any_schedule(module: str) -> None:
    """The runtime imports these: a rank that walks a program needs no schedule."""
    statement = (
        f"import sys, {module}; "
        "print([name for name in sys.modules if name.startswith('weft.schedules')])"
    )
    found = subprocess.run(
        [sys.executable, "-c", statement], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"

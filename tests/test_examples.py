"""The examples run, alone and on ranks, and say the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import weft

EXAMPLE = Path(__file__).parents[1] / "examples" / "train.py"


def _losses(*command: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("step ")]


def test_the_same_script_from_one_process_to_four() -> None:
    alone = _losses(str(EXAMPLE), "zbv")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")
    assert _losses(*launcher, str(EXAMPLE), "zbv") == alone
    assert len(alone) == 10
    assert float(alone[-1].split()[-1]) < float(alone[0].split()[-1])


def test_the_public_names() -> None:
    assert sorted(weft.__all__) == ["Pipeline", "Reference", "__version__", "split"]
    assert weft.Pipeline.__module__ == "weft.runtime.pipeline"


def test_importing_weft_brings_in_nothing() -> None:
    code = "import sys, weft; print(sorted(m for m in sys.modules if m in ('torch', 'numpy')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

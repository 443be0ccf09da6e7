"""The examples run, alone and on ranks, and say the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import weft

EXAMPLES = Path(__file__).parents[1] / "examples"
TRAIN, OWN_SCHEDULE, GPUS = (
    str(EXAMPLES / f"{name}.py") for name in ("train", "own_schedule", "gpus")
)


def _printed(*command: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def _losses(printed: list[str]) -> list[str]:
    losses = [line for line in printed if line.startswith("step ")]
    assert float(losses[-1].split()[-1]) < float(losses[0].split()[-1])
    return losses


def test_the_same_script_from_one_process_to_four() -> None:
    alone = _losses(_printed(TRAIN, "zbv"))
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")
    assert _losses(_printed(*launcher, TRAIN, "zbv")) == alone
    assert len(alone) == 10


def test_the_script_for_gpus_trains_the_same_on_cpus_where_there_are_none() -> None:
    alone = _losses(_printed(GPUS))
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    assert _losses(_printed(*launcher, GPUS)) == alone
    assert len(alone) == 10


def test_a_schedule_of_ones_own_is_drawn_and_trains() -> None:
    printed = _printed(OWN_SCHEDULE)
    assert "capped: 4 devices, 8 microbatches" in printed
    assert "time 39   bubble wall 38.5%   bubble span 38.5%   peak 3 in flight" in printed
    assert len(_losses(printed)) == 5


def test_the_public_names() -> None:
    assert sorted(weft.__all__) == [
        "Pipeline",
        "Reference",
        "Staleness",
        "__version__",
        "explore",
        "show",
        "split",
    ]
    assert weft.Pipeline.__module__ == "weft.runtime.pipeline"


def test_importing_weft_brings_in_nothing() -> None:
    code = "import sys, weft; print(sorted(m for m in sys.modules if m in ('torch', 'numpy')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

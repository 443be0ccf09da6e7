"""`weft train`: real processes, checked against the reference, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import process, refused, weft

SHAPE = ["-d", "2", "-n", "4", "--layers", "4", "--hidden", "32", "--context", "32"]
JOB = [*SHAPE, "--steps", "3", "--seed", "5", "--dropout", "0.1"]


@pytest.mark.parametrize("schedule", ["1f1b", "zbv", "interleaved-1f1b"])
def test_processes_print_the_losses_of_the_reference(schedule: str, tmp_path: Path) -> None:
    words = ["train", "--schedule", schedule, *JOB, "--json"]
    run = process(*words, "--out", str(tmp_path / "run"), timeout=90)
    assert run.returncode == 0, run.stderr
    assert "Traceback" not in run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    alone = weft(*words, "--reference")
    assert json.dumps({"losses": found["losses"]}) == alone.stdout.strip()
    assert list(found) == ["losses", "predicted_step", "measured_step", "bubble", "peak_memory"]
    assert len(found["losses"]) == 3
    assert len(found["peak_memory"]) == 2
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == found


def test_the_reference_prints_a_table() -> None:
    printed = weft("train", *JOB, "--reference").stdout.splitlines()
    assert [line.split()[0] for line in printed] == ["step", "1", "2", "3"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--schedule pipedream", "does not flush"),
        ("--schedule nothing", "There is no file of that name"),
        ("--schedule 1f1b -d 16 --reference", "use --layers 14"),
        ("--data nowhere.txt", "nowhere.txt"),
        ("--heads 3 --reference", "3 heads do not divide 64"),
        ("--steps 0", "0 is less than 1"),
        ("--out .", "exists"),
    ],
)
def test_what_cannot_run_is_refused_at_once(words: str, said: str) -> None:
    refused(weft("train", *words.split()), said)

"""The examples run, alone and on ranks, and say the same."""

from __future__ import annotations

import io
import runpy
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch

import weft
from tests.runtime.launched import printed

EXAMPLES = Path(__file__).parents[1] / "examples"
TRAIN, OWN_SCHEDULE, GPUS, LARGER, TOWERS = (
    EXAMPLES / f"{name}.py"
    for name in ("train", "own_schedule", "gpus", "larger_than_a_process", "two_towers")
)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """What a script prints that one process runs, this one."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)

    def run(script: Path, *words: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [str(script), *words])
        with redirect_stdout(io.StringIO()) as output:
            runpy.run_path(str(script), run_name="__main__")
        return output.getvalue().splitlines()

    return run


def _losses(lines: list[str]) -> list[str]:
    losses = [line for line in lines if line.startswith("step ")]
    assert float(losses[-1].split()[-1]) < float(losses[0].split()[-1])
    return losses


def test_the_same_script_from_one_process_to_four(alone: Callable[..., list[str]]) -> None:
    losses = _losses(alone(TRAIN, "zbv"))
    first, *others = printed(4, TRAIN, "zbv")
    assert _losses(first.splitlines()) == losses
    assert others == [""] * 3
    assert len(losses) == 10


def test_two_towers_train_the_same_on_three_ranks(alone: Callable[..., list[str]]) -> None:
    losses = _losses(alone(TOWERS))
    first, *others = printed(3, TOWERS)
    assert _losses(first.splitlines()) == losses
    assert others == [""] * 2
    assert len(losses) == 10


def test_the_script_for_gpus_trains_the_same_on_cpus_where_there_are_none(
    alone: Callable[..., list[str]],
) -> None:
    losses = _losses(alone(GPUS))
    first, other = printed(2, GPUS)
    assert _losses(first.splitlines()) == losses
    assert other == ""
    assert len(losses) == 10


def test_a_model_larger_than_a_process_starts_alike_on_any_number_of_ranks(
    alone: Callable[..., list[str]],
) -> None:
    whole, ranks = alone(LARGER), [one.splitlines() for one in printed(2, LARGER)]
    assert _losses(ranks[0]) == _losses(whole)
    assert whole[0] == "0.034 of 0.034 MB are held here"
    assert [one[0] for one in ranks] == ["0.017 of 0.034 MB are held here"] * 2
    assert len(ranks[1]) == 1


def test_a_schedule_of_ones_own_is_drawn_and_trains(alone: Callable[..., list[str]]) -> None:
    shown = alone(OWN_SCHEDULE)
    assert "capped: 4 devices, 8 microbatches" in shown
    assert "time 39   bubble wall 38.5%   bubble span 38.5%   peak 3 in flight" in shown
    assert len(_losses(shown)) == 5


def test_the_public_names() -> None:
    assert sorted(weft.__all__) == [
        "Compression",
        "Pipeline",
        "Reference",
        "Stages",
        "Staleness",
        "__version__",
        "explore",
        "losses",
        "recomputed",
        "show",
        "split",
        "stored_in_fp8",
    ]
    assert weft.Pipeline.__module__ == "weft.runtime.pipeline"


def test_importing_weft_brings_in_nothing() -> None:
    code = "import sys, weft; print(sorted(m for m in sys.modules if m in ('torch', 'numpy')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

"""`weft profile`: real processes measure, a file is written, and the other commands take it."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import refused, weft, weft_json
from weft.cost import Provenance
from weft.lower import executable
from weft.notation import read_cost
from weft.schedules import one_f_one_b
from weft.simulate import simulate

TINY = ["-d", "2", "-n", "4", "--layers", "4", "--hidden", "8", "--heads", "1", "--context", "8"]
SHAPE = TINY[:4]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "cost.json"
    run = weft("profile", *TINY, "-o", str(path))
    assert run.exit_code == 0, run.stderr
    for words in ("1f1b: 2 devices", "stage  F ", "weights", "latency", "bandwidth", "overhead"):
        assert words in run.stdout
    assert run.stdout.endswith(f"Written to {path}: weft simulate 1f1b -d 2 -n 4 --cost {path}\n")
    return path


def test_what_is_written_was_measured_by_both_processes(file: Path) -> None:
    cost = read_cost(file)
    assert set(cost.provenance["forward"]) == {Provenance.MEASURED}
    assert cost.measurement is not None
    assert (cost.measurement.ranks, cost.measurement.transport) == (2, "shared")
    assert cost.measurement.rounds >= 20
    assert len(cost.measurement.hops) == 7
    for seconds in (cost.overhead, cost.network.default.latency, *cost.times.update):
        assert 0 < seconds < math.inf
    assert 0 < cost.network.default.bandwidth < math.inf


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "chimera"])
def test_every_schedule_of_these_stages_is_predicted(schedule: str, file: Path) -> None:
    found = weft_json("simulate", schedule, *SHAPE, "--cost", str(file))
    assert found["makespan"] > 0
    assert found["provenance"] == {"measured": 1.0}


def test_a_pair_takes_as_long_as_its_actions_one_after_the_other(file: Path) -> None:
    """Processes overlap nothing, so the prediction does not either."""
    drawn = weft("draw", "dualpipe", *SHAPE, "--cost", str(file))
    assert drawn.exit_code == 0, drawn.stderr
    assert "|B" not in drawn.stdout


def test_it_is_drawn_in_seconds(file: Path) -> None:
    drawn = weft("draw", "1f1b", *SHAPE, "--cost", str(file))
    assert drawn.exit_code == 0, drawn.stderr
    assert re.search(r"time [\d.]+ (ms|us)", drawn.stdout)


def test_a_run_predicts_with_it(file: Path) -> None:
    words = ("train", *TINY, "--steps", "1", "--json", "--cost", str(file))
    run = weft(*words)
    assert run.exit_code == 0, run.stderr
    predicted = json.loads(run.stdout.splitlines()[-1])["predicted_step"]
    walked = executable(one_f_one_b(devices=2, microbatches=4), norms=[[0, 1]])  # it is clipped
    assert predicted == simulate(walked, read_cost(file)).makespan


def test_the_examples_of_its_help_are_understood(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    examples = re.findall(r"\$ weft (.*--cost cost.json)", weft("profile", "--help").stdout)
    assert len(examples) == 4
    for example in examples:
        only = ["--reference", *TINY, "--steps", "1"] if example.startswith("train") else []
        result = weft(*example.split(), *only)
        assert result.exit_code == 0, (example, result.stderr)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hidden", "16"], "measured with hidden 8 instead of 16; run `weft profile`"),
        (["--microbatch-size", "2"], "microbatch_size 4 instead of 2"),
        (["-d", "4"], "stages 2 instead of 4"),
    ],
)
def test_a_run_of_another_model_is_refused(words: list[str], said: str, file: Path) -> None:
    refused(weft("train", *TINY, *words, "--cost", str(file)), str(file), said)


def test_other_stages_are_refused(file: Path) -> None:
    words = ("simulate", "1f1b", "-d", "4", "--cost", str(file))
    refused(weft(*words), "the cost describes 2 stages, 1f1b has 4")


def test_a_file_is_not_written_over(file: Path) -> None:
    before = file.read_text()
    refused(weft("profile", *TINY, "--out", str(file)), f"{file} exists", "--force")
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--schedule nothing", "There is no file of that name"),
        ("--layers 0", "0 is not a whole number from 1 to"),
        ("--config nowhere.toml", "nowhere.toml cannot be read"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(words: str, said: str) -> None:
    refused(weft("profile", *words.split()), said)


def test_ranks_of_torchrun_print_one_object(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        "layers = 2\nhidden = 8\nheads = 1\ncontext = 8\nsteps = 7\nmicrobatches = 2\n"
    )
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["weft", "profile", "--config", "run.toml", "--json"]
    run = subprocess.run(
        [sys.executable, "-m", *launcher, "-m", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert run.returncode == 0, run.stderr
    (line,) = run.stdout.splitlines()
    assert json.loads(line)["measurement"]["ranks"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]

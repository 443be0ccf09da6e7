"""`weft train`: real processes, checked against the reference, and what it refuses."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import split

import numpy as np
import pytest
import torch

from tests.cli.running import process, refused, weft
from tests.runtime.test_planned import PLANS
from weft.cli.runs import Watching
from weft.request import plan_to_json
from weft.train import Metrics, Notice, Saved

SHAPE = ["-d", "2", "-n", "4", "--layers", "4", "--hidden", "32", "--context", "32"]
JOB = [*SHAPE, "--steps", "3", "--seed", "5", "--dropout", "0.1"]
TINY = ["--steps", "1", "--layers", "8", "--hidden", "8", "--heads", "1", "--context", "8"]
ALONE = "--reference"
README = Path(__file__).parents[2] / "README.md"


# Of either sort the one with several stages on a device; tests/runtime has ranks of all of them.
def test_a_process_prints_the_losses_of_the_reference(tmp_path: Path) -> None:
    words = ["train", "--schedule", "zbv", *JOB, "--json"]
    run = process(*words, "--out", str(tmp_path / "run"), timeout=90)
    assert run.returncode == 0, run.stderr
    assert "Traceback" not in run.stderr
    _has_the_losses_of_the_reference(run.stdout, words, tmp_path)


def test_an_asynchronous_run_prints_the_losses_of_the_reference(tmp_path: Path) -> None:
    words = ["train", "--schedule", "wpipe", *JOB, "--json"]
    run = weft(*words, "--out", str(tmp_path / "run"))
    assert run.exit_code == 0, run.stderr
    _has_the_losses_of_the_reference(run.stdout, words, tmp_path)


def _has_the_losses_of_the_reference(printed: str, words: list[str], tmp_path: Path) -> None:
    found = json.loads(printed.splitlines()[-1])
    alone = weft(*words, ALONE)
    assert json.dumps({"losses": found["losses"]}) == alone.stdout.strip()
    assert list(found)[:5] == ["losses", "predicted_step", "measured_step", "bubble", "peak_memory"]
    assert len(found["losses"]) == 3
    assert len(found["peak_memory"]) == 2
    assert found["accelerator"] == "CPU"
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == found
    again = weft("train", "--config", str(tmp_path / "run" / "settings.toml"), "--json", ALONE)
    assert again.stdout == alone.stdout


def test_replicas_in_processes_stop_and_go_on_with_the_losses_of_the_reference(
    tmp_path: Path,
) -> None:
    words = ["train", "-d", "1", "-n", "2", "--replicas", "2", *TINY, "--steps", "5", "--json"]
    kept = [*words, "--save-every", "2", "--keep", "2", "--out", str(tmp_path / "run")]
    first = weft(*kept, "--stop-after", "3")
    assert first.exit_code == 0, first.stderr
    again = weft(*kept, "--resume", "--shard-optimizer")  # which changes no bit
    assert again.exit_code == 0, again.stderr
    assert again.stderr == f"weft: going on after step 3 of {tmp_path / 'run'}\n"
    losses = json.loads(again.stdout)["losses"]
    assert json.dumps({"losses": losses}) == weft(*words, ALONE).stdout.strip()
    assert json.loads(first.stdout)["losses"] == losses[:3]
    saved = sorted(path.name for path in (tmp_path / "run" / "saves").iterdir())
    assert saved == ["step-000004", "step-000005"]
    over = weft(*kept, "--resume")
    assert json.loads(over.stdout)["losses"] == losses
    assert "has taken its 5 steps" in over.stderr
    refused(weft(*kept), "exists", "--resume")
    refused(weft(*kept, "--resume", "--seed", "9"), "saved with seed 0 instead of 9")
    library = weft(*kept, "--resume", "--reduce", "library")
    refused(library, "saved with reduce ordered instead of library", "--reshape")


def test_progress_says_which_step_was_saved_last() -> None:
    shown, said = list[str](), list[str]()
    watching = Watching(lambda fraction, words: shown.append(words), 50, said.append)
    step = Metrics(21, 2.5, 1e-3, 0.5, 1e4, 0.01, 0.25)
    for news in (step, Saved(20), replace(step, step=22), Notice("other versions")):
        watching.take(news)
    assert (
        shown[0] == "step 21/50  loss 2.500  lr 1.0e-03  norm 0.50  10,000 tokens/s  bubble 25.0%"
    )
    assert shown[1] == f"{shown[0]}  saved step 20"
    assert shown[2].endswith("saved step 20")
    assert said == ["other versions"]


def test_tokens_and_a_file_of_settings_in_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tokens = np.random.default_rng(0).integers(0, 300, 5000)
    tokens.astype("<u4").tofile(tmp_path / "tokens.bin")
    (tmp_path / "run.toml").write_text(
        'data = "tokens.bin"\ntoken-type = "uint32"\nlayers = 2\nhidden = 16\nsteps = 9\n'
        'devices = 2\nmicrobatches = 2\ncontext = 16\nprecision = "bf16"\n'
        'compress = "fp8"\n'
    )
    words = ["--config", "run.toml", "--steps", "2", "--json", "--out", "run"]
    run = weft("train", *words)
    assert run.exit_code == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    alone = weft("train", "--config", str(tmp_path / "run" / "settings.toml"), "--json", ALONE)
    assert json.dumps({"losses": found["losses"]}) == alone.stdout.strip()
    assert "vocabulary = 300\n" in (tmp_path / "run" / "settings.toml").read_text()
    for line in ('precision = "bf16"\n', 'compress = "fp8"\n'):
        assert line in (tmp_path / "run" / "settings.toml").read_text()
        without = (tmp_path / "run.toml").read_text().replace(line, "")
        (tmp_path / "without.toml").write_text(without)
        other = weft("train", "--config", str(tmp_path / "without.toml"), *words[2:5], ALONE)
        assert other.stdout != alone.stdout, "so that it matters"


def test_a_run_without_tensorboard_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    result = weft("train", "-d", "1", "-n", "1", *TINY, "--out", str(tmp_path / "run"))
    assert result.exit_code == 0, result.stderr
    assert result.stderr.splitlines() == [
        "weft: no events for TensorBoard, as its package is not installed; to have them:"
        " pip install 'weft[tensorboard]'"
    ]
    assert (tmp_path / "run" / "metrics.jsonl").exists()
    assert not list((tmp_path / "run").glob("events*"))


def test_the_reference_gives_a_sign_of_life() -> None:
    terminal, theirs = pty.openpty()
    words = [*SHAPE, "--steps", "2000", ALONE]
    process = subprocess.Popen(
        [sys.executable, "-m", "weft", "train", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(theirs)
    shown = b""
    try:
        with suppress(OSError):  # of a process that has ended
            while b"training in one process" not in shown:
                shown += os.read(terminal, 4096)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    assert b"training in one process" in shown


def test_the_reference_prints_a_table() -> None:
    printed = weft("train", *JOB, "--reference").stdout.splitlines()
    assert [line.split()[0] for line in printed] == ["step", "1", "2", "3"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--schedule 1f1b --switch-after 2", "is synchronous: --switch-after"),
        ("--schedule pipedream-2bw -d 4 -n 2", "Nearest that works: 3 microbatches"),
        ("--schedule wpipe -d 4 -n 4 -k 3", "exactly 2 stages per device"),
        ("--schedule wpipe -d 4 -n 4 --round 2", "rounds of R >= D - 1"),
        ("--schedule wpipe -d 4 -n 6 --round 4", "Nearest that works: 8 microbatches"),
        ("--schedule nothing", "There is no file of that name"),
        ("--schedule 1f1b -d 16 --reference", "use --layers 14"),
        ("--data nowhere.txt", "nowhere.txt"),
        ("--heads 3 --reference", "3 heads do not divide a hidden size of 64"),
        ("--steps 0", "0 is not a whole number from 1 to"),
        ("--out .", "exists"),
        ("--resume", "name its folder with --out"),
        ("--resume --out .", "exists; name a folder that does not"),
        ("--save-every 2 --json", "say where, with --out"),
        ("--reshape --out new", "add --resume"),
        ("--keep 2 --out new", "--keep is for the saves of --save-every; add that"),
        ("--stop-after 60 --out new", "--stop-after 60: the run ends after its 50 steps; give"),
        ("--stop-after 60 --resume --out new", "--stop-after 60: the run ends after its 50 steps"),
        ("--stop-after 60 --reference", "--stop-after 60: the run ends after its 50 steps; give"),
        ("--keep 0", "0 is not a whole number from 1 to"),
        ("--learning-rate nan", "nan is not a number from 0 to 1"),
        ("--vocabulary 9", "--vocabulary is for tokens"),
        ("--token-type uint16", "--token-type is for tokens"),
        ("--data nowhere.bin", "nowhere.bin is not a file"),
        ("--data . --vocabulary 9", "leave out --vocabulary"),
        ("--model moe-small --layers 4 --heads 2", "leave out --layers and --heads"),
        ("--model kimi-k2", "kimi-k2 is too large for this; `weft list models` has smaller ones"),
    ],
)
def test_what_cannot_run_is_refused_at_once(words: str, said: str) -> None:
    refused(weft("train", *words.split()), said)


@pytest.mark.parametrize("more", [[], ["--reference"]])
def test_gpus_that_are_not_there_are_refused_before_a_process_is_started(
    more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    refused(weft("train", "--accelerator", "cuda", *more), "sees no GPU here")
    refused(weft("train", "--share-gpus", *more), "give --accelerator cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    refused(weft("train", "--accelerator", "cuda", *more), "4 ranks for 2 GPUs")
    refused(weft("profile", "--accelerator", "cuda"), "4 ranks for 2 GPUs")


# examples

LLAMA = {
    "model_type": "llama",
    "hidden_size": 8,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 128,
}


def _examples(text: str) -> list[list[str]]:
    """The words after `weft` of every line that calls `weft train`, torchrun's included."""
    return [split(line, comments=True) for line in re.findall(r"\$ .*weft (train.*)", text)]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the examples name."""
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text("the shuttle goes to and fro " * 9)
    np.arange(500, dtype="<u2").tofile("tokens.bin")
    for name in ("run.toml", "runs/1f1b/settings.toml"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("seed = 1\n")
    Path("plan.json").write_text(plan_to_json(PLANS["uneven"]))
    Path("llama").mkdir()
    Path("llama/config.json").write_text(json.dumps(LLAMA))


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("source", ["help", "README"])
def test_examples_are_understood(source: str) -> None:
    text = weft("train", "--help").stdout if source == "help" else README.read_text()
    assert len(_examples(text)) > 4
    for words in _examples(text):
        has_sizes = "--plan" in words or "--model" in words
        result = weft(*words, *(TINY[:2] if has_sizes else TINY), ALONE)
        assert result.exit_code == 0, (words, result.stderr)

"""`weft plan`: a table for people, JSON for programs, files for what comes next."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.running import refused, weft, weft_json
from weft.cli.plan import _best
from weft.cost import Cluster, Layout, derive, device_named, model_named
from weft.notation import to_json
from weft.plan.asked import Wish
from weft.plan.progress import Found
from weft.plan.question import Choices
from weft.plan.search import searching
from weft.request import read_plan
from weft.schedules import one_f_one_b

MODEL = ("gpt-cpu", "--device", "a100", "--batch", "2048")
QUICK = (*MODEL, "-d", "4", "--schedule", "1f1b,zbv", "--max-microbatch-size", "4")
SEQUENCE = model_named("gpt-cpu").sequence
COUNTS = ("tensor", "pipeline", "replicas", "experts", "microbatches", "microbatch_size")


def test_plans_are_ranked_in_a_table_for_people() -> None:
    lines = weft("plan", *QUICK, "--top", "3").stdout.splitlines()
    headings = lines[0].split()
    assert headings[:8] == ["schedule", "T", "D", "K", "R", "N", "B", "time,"]
    assert [line.split()[0] for line in lines[1:4]] == ["1", "2", "3"]
    words = "\n".join(lines)
    assert "Plan 1 has stages of" in words
    assert "candidates were simulated" in words


def test_an_object_for_programs() -> None:
    found = weft_json("plan", *QUICK)
    assert {*found} == {
        *("devices", "batch", "plans", "needs"),
        *("tried", "hopeless", "candidates", "actions", "is_done"),
    }
    assert found["is_done"]
    assert found["tried"] + found["hopeless"] == found["candidates"]
    assert [plan["rank"] for plan in found["plans"]] == [*range(1, len(found["plans"]) + 1)]
    for plan in found["plans"]:
        assert plan["tensor"] * plan["pipeline"] * plan["replicas"] * plan["experts"] == 4
        sequences = plan["microbatches"] * plan["microbatch_size"]
        assert sequences * plan["replicas"] * plan["experts"] * SEQUENCE == 2048
        assert all(type(plan[name]) is int for name in COUNTS)
        assert plan["seconds"] > 0
        assert 0 < plan["mfu"] < 1
        assert max(plan["memory"]) <= plan["capacity"]
        assert sum(plan["account"].values()) == pytest.approx(1, abs=0.02)
        assert len(plan["layers"]) == plan["pipeline"] * plan["stages_per_device"]
        assert plan["limit"]


def test_the_best_plan_is_written_to_a_file_and_all_to_a_folder(tmp_path: Path) -> None:
    found = weft_json("plan", *QUICK, "-o", str(tmp_path / "plan.json"))["plans"]
    best = read_plan(tmp_path / "plan.json")
    assert best.predicted is not None
    assert best.predicted.seconds == found[0]["seconds"]
    assert list(best.layers) == found[0]["layers"]
    assert weft("verify", str(tmp_path / "plan.json")).exit_code == 0
    simulated = weft_json("simulate", str(tmp_path / "plan.json"))
    assert simulated["makespan"] == pytest.approx(found[0]["seconds"])
    (tmp_path / "all").mkdir()
    weft("plan", *QUICK, "--top", "2", "-o", str(tmp_path / "all"))
    assert [path.name[:2] for path in sorted((tmp_path / "all").iterdir())] == ["01", "02"]


def test_a_cluster_and_a_model_come_from_files(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.json"
    cluster.write_text(to_json(Cluster(devices=4, device=device_named("a100"))))
    model = tmp_path / "model.json"
    model.write_text(to_json(model_named("gpt-cpu")))
    words = ("--batch", "2048", "--schedule", "1f1b,zbv", "--max-microbatch-size", "4")
    found = weft_json("plan", str(model), "--cluster", str(cluster), *words)
    assert found == weft_json("plan", *QUICK)


def test_no_time_leaves_the_first_answer() -> None:
    found = weft_json("plan", *QUICK, "--time", "0")
    assert found["plans"]
    assert not found["is_done"]


def test_a_measured_cost_is_planned_by_its_stages(tmp_path: Path) -> None:
    program = one_f_one_b(devices=4, microbatches=8)
    model, device = model_named("gpt-cpu"), device_named("a100")
    cost = tmp_path / "cost.json"
    cost.write_text(to_json(derive(program, model, device, Layout())))
    found = weft_json("plan", str(cost), "--batch", "8", "--top", "20")["plans"]
    assert {plan["pipeline"] for plan in found} >= {4, 2, 1}
    assert found[0]["mfu"] is None
    assert all(plan["tensor"] == plan["microbatch_size"] == 1 for plan in found)


def test_a_frontier_is_drawn_and_listed(tmp_path: Path) -> None:
    words = (*MODEL, "-d", "4", "--pipeline", "4", "--microbatch-size", "4", "--frontier")
    found = weft_json("plan", *words, "-o", str(tmp_path / "x.svg"))
    kinds = {point["kind"] for point in found["points"]}
    assert kinds == {"schedule", "synthesised"}
    line = [point for point in found["points"] if point["kind"] == "synthesised"]
    assert [p["seconds"] for p in line] == sorted((p["seconds"] for p in line), reverse=True)
    drawn = (tmp_path / "x.svg").read_text()
    assert drawn.count("<circle") > 10
    assert "v-min x 2" in drawn
    refused(weft("plan", *words, "-o", "x.pdf"), "x.pdf", ".svg or .png")


def test_what_fits_nowhere_says_what_would_do() -> None:
    words = ("llama-3-405b", "-d", "8", "--device", "a100", "--batch", "65536", "--max-tensor", "8")
    result = weft("plan", *words, "--schedule", "1f1b,zbv")
    refused(result, "nothing fits", "The least that would do is", "GiB", "such devices")


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        ((), ("what is to be trained",)),
        (("gpt-cpu",), ("how large is a step", "--batch")),
        (("gpt-cpu", "--batch", "2048"), ("--devices and --device",)),
        (("gpt-cpu", "--batch", "2047", *QUICK[1:3], "-d", "4"), ("2,047", "sequences of")),
        (("no-model", *QUICK[1:]), ("no-model",)),
        ((*QUICK, "--schedule", "2f2b"), ("2f2b",)),
        ((*QUICK, "--schedule", "1f1b,wpipe"), ("wpipe is asynchronous", "weft compare")),
        ((*QUICK, "--cluster", "x.json"), ("leave out",)),
        ((*QUICK, "-o", "no/such/plan.json"), ("no folder",)),
    ],
    ids=str,
)
def test_nonsense_is_refused(words: tuple[str, ...], fragments: tuple[str, ...]) -> None:
    refused(weft("plan", *words), *fragments)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--batch 100", "whole number of sequences of 1,024; 1,024 is, or give another --sequence"),
        ("--batch 10Ki --replicas 8", "10 sequences cannot be divided over 8 devices with --repl"),
        ("--batch 10Ki --replicas 8", "Take 8 sequences (--batch 8192), or leave out --replicas"),
        ("--batch 10Ki --replicas 8 --tensor 4", "with --tensor and --replicas. Leave out --repl"),
        ("--batch 8Ki --pipeline 3 --tensor 3", "Leave out some of these options"),
        ("--batch 8Ki --pipeline 3 --frontier", "8 devices with --pipeline. Leave out --pipeline"),
    ],
)
def test_a_batch_that_cannot_be_divided_says_by_which_option(words: str, said: str) -> None:
    refused(weft("plan", "gpt-1.5b", "-d", "8", "--device", "a100", *words.split()), said)


def test_a_broken_cluster_file_is_refused_by_line(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text('{"format": "weft.cluster", "version": 1,\n "devices": 0, "device": "a100"}')
    refused(
        weft("plan", "gpt-cpu", "--batch", "2048", "--cluster", str(file)), str(file), "devices"
    )


def test_a_time_that_is_not_simulated_in_full_is_said_to_be_about_that() -> None:
    """So that the best does not seem to get worse where its full time is longer."""
    wish = Wish(devices=8, device="a100", batch=65536)
    found = [*searching(wish.question("gpt-1.5b", Choices(schedule=("zbv",), pipeline=4)))]
    assert re.fullmatch(r"best so far: about [\d.]+ ms  zbv", _best(found[0]))
    assert re.fullmatch(r"best so far: [\d.]+ ms  zbv", _best(found[-1]))
    assert _best(Found()) == "nothing fits yet"


def test_an_interrupt_prints_the_best_so_far(tmp_path: Path) -> None:
    """In the middle of a search that would take minutes: a table, a plan, and status 130."""
    terminal, theirs = pty.openpty()
    words = ["gpt-145.6b", "-d", "64", "--device", "h100", "--batch", "131072"]
    process = subprocess.Popen(
        [sys.executable, "-m", "weft", "plan", *words, "--effort", "900000000", "-o", "plan.json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(theirs)
    try:
        shown = b""
        with suppress(OSError):
            while b" s  " not in shown:  # the best so far
                shown += os.read(terminal, 4096)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        os.close(terminal)
    assert process.returncode == 130, shown.decode()
    assert out.decode().splitlines()[1].split()[0] == "1"
    assert read_plan(tmp_path / "plan.json").predicted is not None
    assert json.loads((tmp_path / "plan.json").read_text())["format"] == "weft.plan"

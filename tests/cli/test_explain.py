"""`weft explain`: in words, and as JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import refused, weft, weft_json


def test_it_says_where_time_and_memory_go_and_what_would_help() -> None:
    text = weft("explain", "1f1b", "-d", "4", "-n", "8").stdout
    for phrase in (
        "72.7% is work and 27.3% is idle",
        "Every device is idle 9 of 33.",
        "6 order (B0 needs B0 of device 1)",
        "The critical path has 22 actions, which take: forward 11, backward 22.",
        "Device 0 holds most, 5, from F3 at 3 on: activations 4, weights 1.",
        "zbv saves 22.7% of the time and needs no more memory.",
        "With 16 microbatches instead of 8",
    ):
        assert phrase in text


def test_json_has_the_figures_of_simulate() -> None:
    words = ("zbv", "-d", "4", "-n", "8", "--latency", "0.2")
    explained, simulated = weft_json("explain", *words), weft_json("simulate", *words)
    for key in ("name", "devices", "microbatches", "stages", "makespan", "bubble"):
        assert explained[key] == simulated[key]
    assert [one["peak"] for one in explained["memory"]] == simulated["memory"]["peak"]
    assert sum(explained["critical_path"]["seconds"].values()) <= explained["makespan"]


def test_advice_is_what_compare_ranks_first() -> None:
    best = weft_json("explain", "1f1b", "-d", "4", "-n", "8")["helps"]["better"]["fastest"]
    rows = weft_json("compare", "-d", "4", "-n", "8")["rows"]
    synchronous = [row for row in rows if "steady" not in row]
    assert best["seconds"] == pytest.approx(synchronous[0]["time"])


def test_seconds_and_bytes_have_units() -> None:
    answer = weft(
        "explain", "1f1b", "-d", "8", "-n", "24", "--model", "gpt-6.2b", "--device", "a100"
    )
    assert "A step takes 1.599 s" in answer.stdout
    assert "GiB of 74.51 GiB" in answer.stdout
    assert "equal work on all stages" in answer.stdout


SHORT = ("-d", "8", "-n", "64", "--model", "gpt-28.3b", "--microbatch-size", "4")


def test_what_does_not_fit_gets_what_fits_for_an_answer() -> None:
    words = ("explain", "1f1b", *SHORT, "--device", "a100")
    better = weft_json(*words)["helps"]["better"]
    assert set(better) == {"fastest that fits", "leanest"}
    assert all(option["is_fitting"] for option in better.values())
    answer = weft(*words)
    assert "As it is, it does not fit." in answer.stdout
    assert "kimi-k2 --recompute all fits, and takes 24.8% more time." in answer.stdout
    assert answer.stderr == ""  # said once
    assert "microbatches instead of" not in answer.stdout


def test_what_fits_is_ranked_first_by_compare_too() -> None:
    words = (*SHORT, "--device", "a100")
    best = weft_json("explain", "1f1b", *words)["helps"]["better"]["fastest that fits"]
    rows = [row for row in weft_json("compare", *words)["rows"] if not any(row["staleness"])]
    assert (best["name"], best["relief"]) == (rows[0]["name"], rows[0]["relief"])
    assert best["seconds"] == pytest.approx(rows[0]["time"])


def test_where_nothing_fits_it_says_what_is_left() -> None:
    answer = weft(
        "explain", "1f1b", "-d", "4", "-n", "8", "--model", "gpt-28.3b", "--device", "a100"
    )
    assert "nothing else that was tried does" in answer.stdout
    assert "optimizer state alone are more than it has: take more devices" in answer.stdout
    large = ("-d", "4", "-n", "8", "--model", "gpt-14.6b", "--microbatch-size", "64")
    assert "Take smaller microbatches" in weft("explain", "1f1b", *large, "--device", "a100").stdout


def test_more_microbatches_that_do_not_fit_are_said_not_to() -> None:
    words = ("gpipe", "-d", "8", "-n", "24", "--model", "gpt-6.2b", "--device", "a100")
    text = weft("explain", *words).stdout
    assert "and a device holds 86.15 instead of 49.5 GiB; that does not fit." in text


def test_passes_apply_to_what_is_compared_too() -> None:
    plain, again = (
        weft_json("explain", "1f1b", *passes)["helps"]["better"]["fastest"]
        for passes in ((), ("--recompute", "all"))
    )
    assert again["seconds"] > plain["seconds"]


def test_a_program_in_a_file_is_explained_without_others(tmp_path: Path) -> None:
    path = tmp_path / "program.json"
    assert weft("export", "zbv", "--format", "json", "-o", str(path)).exit_code == 0
    explained = weft_json("explain", str(path))
    assert explained["makespan"] == 25.5
    assert explained["helps"]["better"] == {}
    assert "no other schedule" not in weft("explain", str(path)).stdout


def test_asynchronous_schedules_are_explained() -> None:
    text = weft("explain", "pipedream", "-d", "4", "-n", "4").stdout
    assert "The 16 steps take 57" in text
    assert "Once settled, a step takes 3 and 0.0% is idle." in text
    assert "of these 16 steps" in text
    again = weft_json("explain", "wpipe", "--recompute", "all")["steady"]["period"]
    assert again > weft_json("explain", "wpipe")["steady"]["period"]
    assert "steady" not in weft_json("explain", "wpipe", "--experts", "1")


def test_bad_input_is_refused() -> None:
    refused(weft("explain", "nothing"), "no schedule named")
    refused(weft("explain", "chimera", "-d", "3"), "even number of devices")
    refused(weft("explain", "1f1b", "--offload", "0,9"), "stages are numbered 0 to 3")


def test_no_colour_in_a_pipe() -> None:
    assert "\x1b[" not in weft("explain", "1f1b").stdout
    assert "\x1b[3" not in weft("explain", "1f1b", FORCE_COLOR="1", NO_COLOR="1").stdout

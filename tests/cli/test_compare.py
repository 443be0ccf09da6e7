"""`weft compare`: every schedule at one shape, ranked."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from tests.cli.running import refused, weft, weft_json
from weft.cost import DEVICES
from weft.notation import to_json
from weft.schedules import REGISTRY


def test_every_schedule_and_variant_is_ranked_or_refused() -> None:
    compared = weft_json("compare", "-d", "4", "-n", "8")
    shown = {(row["name"], row["variant"]) for row in compared["rows"] + compared["refused"]}
    for schedule in REGISTRY:
        for variant in ("", *schedule.variants):
            assert (schedule.name, variant) in shown


def test_rows_are_ranked_by_time_then_by_staleness_then_by_peak() -> None:
    rows = weft_json("compare", "-d", "4", "-n", "8")["rows"]
    keys = [(r["time"], max(r["staleness"]), max(r["peak_activations"])) for r in rows]
    assert keys == sorted(keys)
    assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))


def test_a_table_for_people() -> None:
    table = weft("compare", "1f1b", "zbv", "gpipe", "-d", "4", "-n", "8").stdout.splitlines()
    assert table[0].split() == [
        *("schedule", "K", "time", "wall", "span", "peak", "copies", "messages", "depth")
    ]
    assert table[1].split() == ["1", "zbv", "2", "25.5", "5.9%", "0.0%", "4", "1", "96", "1"]
    assert table[2].split() == ["2", "1f1b", "1", "33", "27.3%", "27.3%", "4", "1", "48", "1"]


def test_an_asynchronous_run_is_compared_by_its_step() -> None:
    rows = weft_json("compare", "1f1b", "pipedream", "pipedream-2bw", "-d", "4", "-n", "8")["rows"]
    times = {(row["name"], row["variant"]): row["time"] for row in rows}
    assert times["1f1b", ""] == 33
    assert times["pipedream", ""] == times["pipedream-2bw", "eager"] == 24
    table = weft("compare", "1f1b", "pipedream", "-d", "4", "-n", "8").stdout
    assert re.search(r"pipedream +1 +24 +0.0% +0.0% +4 +4 +3 +48 ", table)
    assert re.search(r"1f1b +1 +33 .* 4 +1 +0 +48 ", table)


def test_only_schedules_that_loop_take_more_stages() -> None:
    def stages(*words: str) -> dict[str, int]:
        rows = weft_json("compare", "1f1b", "zbv", "looped-bfs", *words)["rows"]
        return {row["name"]: row["stages_per_device"] for row in rows}

    assert stages() == {"1f1b": 1, "zbv": 2, "looped-bfs": 2}
    assert stages("-k", "3") == {"1f1b": 1, "zbv": 2, "looped-bfs": 3}


def test_schedules_that_refuse_the_shape_say_why() -> None:
    table = weft("compare", "chimera", "dualpipev", "1f1b", "-d", "3", "-n", "4").stdout
    assert re.search(r"chimera +needs an even number of devices; nearest: 4 devices", table)
    assert re.search(r"dualpipev +needs at least twice as many microbatches as devices", table)


def test_a_cyclic_variant_says_why() -> None:
    table = weft("compare", "interleaved-1f1b", "-d", "4", "-n", "5", "-k", "3").stdout
    assert "interleaved-1f1b (ragged)  interleaved-1f1b on 4 devices: deadlock" in table


def test_advice_keeps_the_graph_that_was_asked_for() -> None:
    refused = weft_json("compare", "--graph", "inception", "-n", "3")["refused"]
    assert {row["reason"] for row in refused} == {
        "needs a chain of stages; gpipe and 1f1b also run graphs"
    }


def test_graphs_are_compared_by_those_that_take_them() -> None:
    compared = weft_json("compare", "--graph", "two-tower:2")
    assert {row["name"] for row in compared["rows"]} == {
        schedule.name for schedule in REGISTRY if schedule.takes_graph
    }


def test_a_name_given_twice_is_compared_once() -> None:
    assert len(weft_json("compare", "1f1b", "1f1b")["rows"]) == 1


def test_bad_input_is_refused_once() -> None:
    refused(weft("compare", "--backward", "2", "--weight-grad", "1"), "leave out --weight-grad")
    refused(weft("compare", "--cost", "nowhere.json"), "nowhere.json: cannot be read")
    refused(weft("compare", "chimera", "-d", "3"), "nothing to compare: chimera needs an even")


# memory


SHORT = ("-d", "8", "-n", "64", "--model", "gpt-28.3b", "--microbatch-size", "4")


def test_naive_is_not_crowned_where_only_recomputation_lets_the_others_fit() -> None:
    """As they are, all but naive run out of memory; recomputed, they take a fifth of its time."""
    names = ("naive", "gpipe", "1f1b", "interleaved-1f1b", "zbv", "v-min")
    rows = weft_json("compare", *names, *SHORT, "--device", "a100")["rows"]
    fitting = [row for row in rows if max(row["memory"]["peak"]) <= row["memory"]["capacity"]]
    assert rows[: len(fitting)] == fitting
    assert (rows[0]["name"], rows[0]["relief"]) == ("interleaved-1f1b", "--recompute all")
    as_is = [row for row in fitting if not row["relief"] and "recompute" not in row["variant"]]
    assert [row["name"] for row in as_is] == ["naive"]
    assert fitting[-1]["name"] == "naive"
    assert fitting[-1]["time"] > 5 * rows[0]["time"]


def test_what_is_ranked_with_a_relief_is_what_simulate_says() -> None:
    rows = weft_json("compare", "1f1b", *SHORT, "--device", "a100")["rows"]
    (row,) = [row for row in rows if row["relief"]]
    words = ("1f1b", *SHORT, "--device", "a100", *row["relief"].split())
    simulated = weft_json("simulate", *words)
    assert row["time"] == simulated["makespan"]
    assert row["memory"] == simulated["memory"]


def test_offloading_is_a_variant_and_how_to_run_it_is_said(tmp_path: Path) -> None:
    """A little too small a device, and a link to the host that keeps up."""
    path = tmp_path / "device.json"
    path.write_text(to_json(replace(DEVICES["a100"], memory=23e9)))
    words = ("1f1b", "-d", "8", "-n", "24", "--model", "gpt-6.2b", "--device", str(path))
    rows = weft_json("compare", *words)["rows"]
    assert [row["relief"] for row in rows] == ["--recompute all", ""]
    path.write_text(to_json(replace(DEVICES["a100"], memory=25e9)))
    rows = weft_json("compare", *words)["rows"]
    assert [row["relief"] for row in rows] == ["--offload auto", "--recompute all", ""]
    assert rows[0]["time"] == rows[2]["time"]
    assert 'Pipeline(..., offload="auto", cost=...)' in weft("compare", *words).stdout


def test_both_are_tried_where_neither_suffices(tmp_path: Path) -> None:
    words = ("gpipe", "--variant", "", "-d", "8", "-n", "64", "--model", "gpt-6.2b", "--device")
    path = tmp_path / "device.json"
    path.write_text(to_json(replace(DEVICES["a100"], memory=17.5e9)))
    rows = weft_json("compare", *words, str(path))["rows"]
    reliefs = {row["relief"] for row in rows if not row["variant"]}
    assert reliefs == {"", "--recompute all --offload auto"}


def test_an_asynchronous_run_is_relieved_and_settles() -> None:
    rows = weft_json("compare", "pipedream-2bw", *SHORT, "--device", "a100")["rows"]
    by_relief = {row["relief"]: row for row in rows if not row["variant"]}
    assert by_relief["--recompute all"]["time"] > by_relief[""]["time"]
    assert by_relief["--recompute all"]["steady"]["bubble"] < 0.05


def test_without_a_limit_nothing_is_relieved() -> None:
    assert not any(row["relief"] for row in weft_json("compare", "1f1b", "gpipe")["rows"])


# files


def written(path: Path, name: str, *sizes: str) -> str:
    assert weft("export", name, *sizes, "-o", str(path)).exit_code == 0
    return str(path)


def test_a_file_is_compared_at_the_shape_that_it_has(tmp_path: Path) -> None:
    """Schedules beside it take its devices and microbatches."""
    mine = written(tmp_path / "mine.txt", "zbv", "-d", "3", "-n", "7")
    rows = weft_json("compare", "zbv", "1f1b", mine)["rows"]
    of_file, of_schedule = (next(r for r in rows if r["name"] == name) for name in (mine, "zbv"))
    assert {(row["devices"], row["microbatches"]) for row in rows} == {(3, 7)}
    for figure in ("time", "bubble", "messages", "stages_per_device", "peak_activations"):
        assert of_file[figure] == of_schedule[figure]


def test_every_form_of_file_is_compared(tmp_path: Path) -> None:
    files = [
        written(tmp_path / "mine.txt", "1f1b", "-d", "2", "-n", "4"),
        written(tmp_path / "mine.json", "1f1b", "-d", "2", "-n", "4", "--format", "json"),
        written(tmp_path / "mine.csv", "1f1b", "-d", "2", "-n", "4", "--format", "torch-csv"),
    ]
    rows = weft_json("compare", *files)["rows"]
    assert [row["name"] for row in rows] == files
    assert {row["time"] for row in rows} == {15}


def test_a_file_of_another_shape_is_not_compared(tmp_path: Path) -> None:
    small = written(tmp_path / "small.txt", "1f1b", "-d", "2", "-n", "4")
    compared = weft_json("compare", "1f1b", small, "-d", "4", "-n", "8")
    assert [row["name"] for row in compared["rows"]] == ["1f1b"]
    assert compared["refused"][0]["reason"] == "has 2 devices; the others have 4"
    short = written(tmp_path / "short.txt", "1f1b", "-d", "4", "-n", "4")
    compared = weft_json("compare", "1f1b", short, "-d", "4", "-n", "8")
    assert compared["refused"][0]["reason"] == "has 4 microbatches; the others have 8"
    towers = written(tmp_path / "towers.txt", "gpipe", "--graph", "two-tower:2", "-n", "8")
    compared = weft_json("compare", "1f1b", towers)
    assert compared["refused"][0]["reason"] == "computes another graph of stages than the others"
    beside = weft_json("compare", "1f1b", towers, "--graph", "two-tower:2")
    assert {row["name"] for row in beside["rows"]} == {"1f1b", towers}


def test_a_run_in_a_file_is_compared_by_as_many_microbatches(tmp_path: Path) -> None:
    run = written(tmp_path / "run.txt", "pipedream", "-d", "4", "-n", "2", "--updates", "16")
    rows = weft_json("compare", "1f1b", "pipedream", run, "-n", "8")["rows"]
    assert {row["time"] for row in rows if row["name"] != "1f1b"} == {24}
    short = written(tmp_path / "short.txt", "pipedream", "-d", "4", "-n", "1", "--updates", "2")
    compared = weft_json("compare", "1f1b", short, "-n", "8")
    assert "more --updates" in compared["refused"][0]["reason"]


def test_a_file_has_its_own_shape_alone(tmp_path: Path) -> None:
    mine = written(tmp_path / "mine.txt", "1f1b", "-d", "2", "-n", "4")
    refused(weft("compare", mine, "-d", "4"), "a shape of its own", "leave out --devices")
    refused(weft("compare", "nowhere.txt"), "nowhere.txt: cannot be read")


def test_with_jitter_it_ranks_by_what_is_left_of_a_lead() -> None:
    """gpipe is as long as eager-1f1b as long as nothing varies."""
    words = ("compare", "gpipe", "eager-1f1b", "-d", "4", "-n", "8", "--latency", "0.25")
    still, varied = (weft_json(*words, *more)["rows"] for more in ((), ("--jitter", "0.1")))
    times = {row["name"]: row["time"] for row in still if not row["variant"]}
    assert times["gpipe"] == times["eager-1f1b"]
    assert varied[0]["name"] == "eager-1f1b"
    keys = [row["time"] * row["jitter"]["mean"] for row in varied]
    assert keys == sorted(keys)
    headings = weft(*words, "--jitter", "0.1").stdout.splitlines()[0].split()
    assert headings[2:5] == ["time", "jitter", "longer"]

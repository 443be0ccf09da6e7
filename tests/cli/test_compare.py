"""`weft compare`: every schedule at one shape, ranked."""

from __future__ import annotations

import re

from tests.cli.running import refused, weft, weft_json
from weft.schedules import REGISTRY


def test_every_schedule_and_variant_is_ranked_or_refused() -> None:
    compared = weft_json("compare", "-d", "4", "-n", "8")
    told = {(row["name"], row["variant"]) for row in compared["rows"] + compared["refused"]}
    for schedule in REGISTRY:
        for variant in ("", *schedule.variants):
            assert (schedule.name, variant) in told


def test_rows_are_ranked_by_time_then_by_peak() -> None:
    rows = weft_json("compare", "-d", "4", "-n", "8")["rows"]
    keys = [(row["time"], max(row["peak_activations"])) for row in rows]
    assert keys == sorted(keys)
    assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))


def test_a_table_for_people() -> None:
    table = weft("compare", "1f1b", "zbv", "gpipe", "-d", "4", "-n", "8").stdout.splitlines()
    assert table[0].split() == [
        *("schedule", "K", "time", "wall", "span", "peak", "copies", "messages", "depth")
    ]
    assert table[1].split() == ["1", "zbv", "2", "25.5", "5.9%", "0.0%", "4", "1", "96", "1"]
    assert table[2].split() == ["2", "1f1b", "1", "33", "27.3%", "27.3%", "4", "1", "48", "1"]


def test_a_run_without_a_flush_is_compared_by_its_step() -> None:
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

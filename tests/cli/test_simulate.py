"""`weft simulate`: the figures of a schedule, and the options that change them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import refused, weft, weft_json
from weft.schedules import REGISTRY


def test_json_has_every_figure() -> None:
    assert weft_json("simulate", "1f1b", "-d", "4", "-n", "8") == {
        "name": "1f1b",
        "devices": 4,
        "microbatches": 8,
        "stages": 4,
        "makespan": 33.0,
        "longest_device_span": 33.0,
        "bubble": {"wall": pytest.approx(3 / 11), "span": pytest.approx(3 / 11)},
        "peak_activations": [4.0, 3.0, 2.0, 1.0],
        "weight_copies": 1.0,
        "messages": 48,
        "versions": [1, 1, 1, 1],
        "staleness": [0, 0, 0, 0],
        "actions": 64,
        "verified": True,
        "channel_depth": 1,
        "memory": {
            "peak": [5.0, 4.0, 3.0, 2.0],
            "categories": {"weights": [1.0] * 4, "activations": [4.0, 3.0, 2.0, 1.0]},
        },
        "provenance": {"given": 1.0},
    }


@pytest.mark.parametrize("name", [schedule.name for schedule in REGISTRY])
def test_every_schedule_runs_with_its_defaults(name: str) -> None:
    figures = weft_json("simulate", name)
    assert figures["devices"] == 4
    updates_after_each = name in ("naive-async", "pipedream")
    assert figures["microbatches"] == (1 if updates_after_each else 8)
    assert figures["verified"] is True


def makespan(words: str) -> float:
    return float(weft_json("simulate", *words.split())["makespan"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("gpipe -d 4 -n 8 --forward 2 --backward 3", 55),
        ("gpipe -d 4 -n 8 --forward 2 --input-grad 1 --weight-grad 2", 55),
        ("gpipe -d 4 -n 8 --input-grad 3", 55),
        ("gpipe -d 4 -n 8 --latency 0.25", 34.5),
        ("gpipe -d 4 -n 8 --variant recompute-early", 41),
        ("interleaved-1f1b -d 4 -n 8 -k 4", (8 + 3 / 4) * 3),
        ("chimera -d 8 -n 8 --pipes 2", 3 * 8 + 2 * (8 // 2 - 2)),
        ("1f1b --graph two-tower:2 -n 8", 30),
        ("1f1b --graph inception", 30),
        ("1f1b --graph inception -d 6", 30),
    ],
)
def test_options_reach_the_cost_and_the_shape(words: str, expected: float) -> None:
    assert makespan(words) == pytest.approx(expected, abs=1e-9)


def test_a_pair_may_overlap() -> None:
    assert (
        makespan("dualpipev --pair 2.5") < makespan("dualpipev") == makespan("dualpipev --pair 3")
    )


def test_costs_of_each_stage_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    stage = '{"forward": %s, "input_grad": 1, "weight_grad": 1}'
    stages = ", ".join(stage % forward for forward in (1, 5))
    path.write_text(f'{{"format": "weft.cost", "version": 1, "stages": [{stages}]}}')
    assert makespan(f"gpipe -d 2 -n 2 --cost {path}") == 1 + 2 * 5 + 2 * 2 + 2


def test_a_graph_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    path.write_text('{"stages": 3, "edges": [[0, 2], [1, 2]]}')
    apart = weft_json("simulate", "1f1b", "--graph", str(path))
    assert (apart["devices"], apart["microbatches"], apart["makespan"]) == (3, 8, 27)
    path.write_text('{"stages": 3, "edges": [[0, 2], [1, 2]], "devices": [0, 0, 1]}')
    together = weft_json("simulate", "1f1b", "--graph", str(path))
    assert (together["devices"], together["stages"]) == (2, 3)


def test_memory_beyond_a_capacity_is_a_warning_here_and_a_broken_rule_there(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_text(
        '{"format": "weft.cost", "version": 1, "capacity": 3,'
        ' "stages": [{"forward": 1, "saved": 2}, {"forward": 1, "saved": 2}]}'
    )
    words = ("gpipe", "-d", "2", "-n", "2", "--cost", str(path))
    for command in ("simulate", "draw"):
        result = weft(command, *words)
        assert result.exit_code == 0
        assert result.stderr == (
            "weft: warning: gpipe needs more than the 3 bytes of memory that a device has:"
            " device 0 by 1 bytes, device 1 by 1 bytes."
            " `weft explain` says what fits.\n"
        )
    assert weft_json("simulate", *words)["memory"]["capacity"] == 3
    refused = weft("verify", *words)
    assert refused.exit_code == 1
    assert "device 0 needs memory of 4 " in refused.stdout


def test_a_report_for_people() -> None:
    report = weft("simulate", "1f1b", "-d", "4", "-n", "8", "--latency", "0.5").stdout
    for line in (
        "time           41     from the first start to the last end",
        "bubble, wall   41.5%  idle fraction of all devices within that time",
        "device  work  idle  warm-up  value  exposed  order  cool-down  peak  memory",
        "critical path: 22 actions (11 B, 11 F)",
    ):
        assert line in report.splitlines()


@pytest.mark.parametrize("command", ["draw", "simulate", "export"])
def test_a_cyclic_program_breaks_a_rule(command: str) -> None:
    words = ["interleaved-1f1b", "--variant", "ragged", "-d", "4", "-n", "5", "-k", "3"]
    result = weft(command, *words)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("weft: interleaved-1f1b on 4 devices: deadlock: device 0 waits")


def test_an_option_keeps_its_old_name_and_does_not_mention_it() -> None:
    words = ("simulate", "zbv", "-d", "4", "-n", "8")
    assert weft_json(*words, "--lag", "0.5") == weft_json(*words, "--latency", "0.5")
    text = weft("simulate", "--help").stdout
    assert "--latency SECONDS" in text
    assert "--lag" not in text
    refused(weft("simulate", "zbv", "--lag", "-1"), "Invalid value for '--latency': -1.0 is not")


def test_with_jitter_a_step_is_longer_on_average() -> None:
    still, found = (
        weft_json("simulate", "1f1b", "-d", "4", "-n", "8", *more)
        for more in ((), ("--jitter", "0.05"))
    )
    jitter = found.pop("jitter")
    assert found == still
    assert jitter["draws"] == 100
    assert 1 < jitter["mean"] < 1.05
    assert jitter["low"] < jitter["mean"] < jitter["high"]
    shown = weft("simulate", "1f1b", "-d", "4", "-n", "8", "--jitter", "0.05").stdout
    assert f"with jitter    {33 * jitter['mean']:.4g}" in shown
    assert f"{100 * (jitter['mean'] - 1):.1f}% longer" in shown


def test_what_a_profile_has_not_found_is_not_drawn() -> None:
    refused(weft("simulate", "1f1b", "--jitter", "measured"), "does not say how much times vary")
    refused(weft("simulate", "1f1b", "--jitter", "5"), "'5' is not one of measured, or a fraction")

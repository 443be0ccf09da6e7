"""What the options add to a program: recompute, offload, experts; and three rows per device."""

from __future__ import annotations

import pytest

from tests.cli.running import refused, weft, weft_json

K2 = ("kimi-k2", "-d", "4", "-k", "2", "-n", "8")


def test_offload_lowers_memory_and_keeps_the_time() -> None:
    words = ("simulate", "1f1b", "-d", "8", "-n", "32")
    plain, away = weft_json(*words), weft_json(*words, "--offload", "all", "--copy", "0.75")
    assert away["makespan"] == plain["makespan"] == 117
    assert away["memory"]["categories"]["activations"][0] == 2
    assert plain["memory"]["categories"]["activations"][0] == 8
    assert away["verified"] is True


def test_offload_by_amount() -> None:
    """Of 1f1b on 4 devices, where a copy takes longer than there is time for all of them."""
    words = ("simulate", "1f1b", "-d", "4", "-n", "8", "--copy", "2.9", "--offload")
    found = {amount: weft_json(*words, amount) for amount in ("none", "0.5", "auto", "all")}
    times = {amount: one["makespan"] for amount, one in found.items()}
    assert times["none"] == times["auto"] < times["0.5"] < times["all"]
    refused(weft(*words, "1.5"), "or a fraction of the bytes")


def test_offload_of_some_stages() -> None:
    words = ("simulate", "1f1b", "-d", "4", "-n", "8", "--copy", "0.25")
    peaks = weft_json(*words, "--offload", "stage:0")["memory"]["categories"]["activations"]
    assert peaks[0] < 4
    assert peaks[1:] == [3, 2, 1]


def test_recompute_runs_the_forward_again() -> None:
    words = ("simulate", "gpipe", "-d", "4", "-n", "8")
    assert weft_json(*words, "--recompute", "all")["makespan"] == 44
    assert weft_json(*words, "--recompute", "0,1")["makespan"] < 44


def test_experts_cut_pairs_into_streams() -> None:
    costs = ("--forward", "3", "--input-grad", "3", "--weight-grad", "2", "--pair", "6")
    assert weft_json("simulate", *K2, *costs)["makespan"] == 62.5
    assert weft_json("simulate", *K2, *costs, "--experts", "1")["makespan"] == 60.5
    ends = weft_json("simulate", *K2, "--variant", "paired-ends", *costs)
    assert ends["makespan"] == 61.5


def test_three_rows_for_each_device() -> None:
    lines = weft("draw", *K2, "--streams", "--width", "160").stdout.splitlines()
    rows = lines[1:13]
    assert [row.split()[:2] for row in rows] == [
        [str(device), name] for device in range(4) for name in ("compute", "comm", "copy")
    ]
    assert rows[0].split()[2].startswith("A")
    legend = " ".join(lines[14:])
    for word in ("attention", "dispatch", "experts", "combine", "offload", "load back", "send"):
        assert word in legend


@pytest.mark.parametrize("name", ["1f1b", "dualpipe", "dualpipev", "zbv", "pipedream-2bw"])
def test_streams_of_other_schedules(name: str) -> None:
    picture = weft("draw", name, "-d", "4", "-n", "8", "--streams").stdout
    assert "0 compute" in picture
    assert "3 copy" in picture or name == "1f1b"


def test_versions_and_updates_are_drawn() -> None:
    picture = weft("draw", "pipedream-2bw", "-d", "2", "-n", "2", "--updates", "3").stdout
    assert "F0₀" in picture
    assert "F4₁" in picture
    assert "U update" in picture


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--offload", "stage:9"), "stages are numbered 0 to 3"),
        (("--offload", "0,9"), "stages are numbered 0 to 3"),
        (("--offload", "x"), "`all`, a stage like stage:1, or stages like 0,2,4"),
        (("--offload", "1"), "`1.0` or `all` everything, `stage:1` what there is time for"),
        (("--offload", "0"), "`0.0` or `none` offloads nothing, `stage:0` what there is time for"),
        (("--offload", "2"), "fraction: `stage:2` what there is time for of stage 2"),
        (("--recompute", "-1"), "stages are numbered 0 to 3"),
        (("--experts", "0"), "0 is not a whole number from 1 to"),
        (("--copy", "nan"), "not a finite number"),
        (("--offload", "all", "--copy", "1", "--model", "gpt-6.2b", "--device", "a100"), "--copy"),
    ],
)
def test_what_makes_no_sense_is_refused(words: tuple[str, ...], reason: str) -> None:
    refused(weft("simulate", "1f1b", "-d", "4", "-n", "8", *words), reason)


def test_steps_follow_each_other_with_their_updates() -> None:
    drawn = weft("draw", "1f1b", "-d", "2", "-n", "2", "--steps", "2").stdout.splitlines()
    assert drawn[1:3] == [
        "0 F0 F1 ......B0    ...B1   UF2 F3 ......B2    ...B3   U|",
        "1 ...F0 B0    F1 B1   U.........F2 B2    F3 B3   U......|",
    ]
    one, three = (
        weft_json("simulate", "zbv", "-d", "4", "-n", "8", "--steps", str(steps))
        for steps in (1, 3)
    )
    assert three["actions"] == 3 * one["actions"]
    assert three["makespan"] > 2.5 * one["makespan"]


def test_what_updates_itself_has_no_further_steps() -> None:
    refused(weft("draw", "pipedream", "--steps", "2"), "--updates has its steps")
    refused(weft("draw", "1f1b", "--steps", "0"), "0 is not a whole number from 1")
    refused(weft("draw", "1f1b", "--steps", "9999999"), "actions or more")

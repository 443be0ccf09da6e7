"""`weft list`: every schedule, and all about one."""

from __future__ import annotations

from tests.cli.running import weft, weft_json
from weft.schedules import REGISTRY


def test_every_schedule_has_its_line() -> None:
    lines = weft("list").stdout.splitlines()
    for schedule in REGISTRY:
        assert any(schedule.name in line and schedule.summary in line for line in lines)


def test_all_about_one() -> None:
    told = weft("list", "interleaved-1f1b").stdout
    for fragment in (
        "Megatron-LM",
        "(N + (D - 1)/K)(F + B)",
        "1 or more on each device",
        "at least as many microbatches as devices",
        "--variant ragged",
        "weft draw interleaved-1f1b -d 4 -n 8 -k 2",
    ):
        assert fragment in told


def test_examples_work() -> None:
    for schedule in REGISTRY:
        told = weft("list", schedule.name).stdout.splitlines()
        (example,) = (line.split("weft ")[1] for line in told if line.startswith("try"))
        assert weft(*example.split()).exit_code == 0


def test_json() -> None:
    every = weft_json("list")["schedules"]
    assert [schedule["name"] for schedule in every] == [schedule.name for schedule in REGISTRY]
    one = weft_json("list", "zbv")
    assert one["stages_per_device"] == {"least": 2, "most": 2}
    assert one["claims"]["measure"] == "wall"

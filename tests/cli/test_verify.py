"""`weft verify`: what was proved, or every rule that is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import refused, weft, weft_json
from weft.notation import to_text, to_torch_csv
from weft.schedules import one_f_one_b
from weft.verify import RULES

PROGRAM = one_f_one_b(devices=2, microbatches=2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "program.txt"
    path.write_text(to_text(PROGRAM))
    return path


def test_what_was_proved(path: Path) -> None:
    result = weft("verify", str(path))
    assert result.exit_code == 0
    assert result.stdout.startswith("1f1b: 2 devices, 2 microbatches, 8 actions: valid\n")
    limited = weft("verify", str(path), "--memory", "9", "--channel-depth", "2").stdout
    assert all(rule.says in limited for rule in RULES)
    assert "least depth    1" in result.stdout


def test_every_broken_rule_is_listed(path: Path) -> None:
    path.write_text(path.read_text().replace("0B0 0B1", "").replace("1F1 1B1", "1B1 1F1 1F1"))
    result = weft("verify", str(path))
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) >= 3
    assert all("1f1b on 2 devices" in line for line in result.stdout.splitlines())


def test_a_deadlock_is_named(path: Path) -> None:
    path.write_text(path.read_text().replace("1F0 1B0 1F1 1B1", "1F0 1F1 1B1 1B0"))
    assert weft("verify", str(path)).exit_code == 0
    path.write_text(path.read_text().replace("0F0 0F1 0B0 0B1", "0F0 0B0 0F1 0B1"))
    result = weft("verify", str(path))
    assert result.exit_code == 1
    assert "deadlock" in result.stdout


def test_a_channel_depth_can_be_demanded(path: Path) -> None:
    assert weft("verify", str(path), "--channel-depth", "1").exit_code == 0
    result = weft("verify", str(path), "--channel-depth", "0")
    assert result.exit_code == 1
    assert "Give channels a depth of 1" in result.stdout


def test_memory_can_be_bounded(path: Path) -> None:
    assert weft("verify", str(path), "--memory", "3").exit_code == 0
    result = weft("verify", str(path), "--memory", "2.5")
    assert result.exit_code == 1
    assert "device 0 needs memory of 3 at 0F1 and has 2.5." in result.stdout


def test_memory_takes_units(path: Path) -> None:
    machine = ("--model", "gpt-6.2b", "--device", "a100")
    tight = weft("verify", "1f1b", "-d", "8", "-n", "24", *machine, "--memory", "20GiB")
    assert "device 0 needs memory of 21.32 GiB at 0F7 and has 20 GiB." in tight.stdout
    assert weft("verify", str(path), "--memory", "1KiB").exit_code == 0
    refused(weft("verify", str(path), "--memory", "-1"), "'-1' is not a number of bytes")
    refused(weft("verify", str(path), "--memory", "20 parsecs"), "GiB")


def test_what_has_no_limit_is_not_said_to_be_proved(path: Path) -> None:
    lines = weft("verify", str(path)).stdout.splitlines()
    assert "memory         no limit; --memory or --device gives one" in lines
    assert "channel depth  no limit; --channel-depth gives one" in lines
    text = weft("verify", str(path), "--memory", "9", "--channel-depth", "2").stdout
    assert "no limit" not in text


def test_torch_tables_are_read(tmp_path: Path) -> None:
    path = tmp_path / "program.csv"
    path.write_text(to_torch_csv(PROGRAM))
    assert weft("verify", str(path)).exit_code == 0


def test_a_schedule_can_be_verified_too() -> None:
    assert "64 actions: valid" in weft("verify", "1f1b", "-d", "4", "-n", "8").stdout


def test_json(path: Path) -> None:
    assert weft_json("verify", str(path)) == {
        "name": "1f1b",
        "actions": 8,
        "verified": True,
        "channel_depth": 1,
        "rules": [rule.name for rule in RULES],
        "findings": [],
    }

"""Bad input: status 2, one clear message, no traceback, no partial file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import refused, weft
from weft.notation import to_json, to_text
from weft.schedules import one_f_one_b

COMMANDS = ("draw", "simulate", "export", "verify")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        ("chimera -d 3", "even number of devices. Nearest that works: 4 devices"),
        ("chimera -k 2", "exactly 1 stage"),
        ("1f1b -n 0", "'--microbatches': 0 is not a whole number from 1 to"),
        ("1f1b -n abc", "'--microbatches': 'abc' is not a valid integer"),
        ("1f1b -d -4", "'--devices': -4 is not a whole number from 1 to"),
        ("1f1b --forward -1", "'--forward': -1.0 is not a finite number"),
        ("1f1b --backward nan", "'--backward': nan is not a finite number"),
        ("1f1b --latency inf", "'--latency': inf is not a finite number"),
        ("1f1b --pair 1e308", "'--pair'"),
        ("1f1b --weight-grad x", "'--weight-grad': 'x' is not a valid float"),
        ("1f1b --backward 2 --input-grad 1", "leave out --input-grad"),
        ("1f1b --cost nowhere.json", "nowhere.json: cannot be read"),
        ("1f1b --cost nowhere.json --latency 1", "leave out --latency"),
        ("1f1d", "Did you mean 1f1b?"),
        ("One_F_One_B", "no schedule named"),
        ("nowhere.txt", "nowhere.txt: cannot be read"),
        ("nowhere/program", "nowhere/program: cannot be read"),
        ("1f1b -d 100000 -n 100000", "100,000 stages"),
        ("1f1b -d 1000 -n 100000", "200,000,000 actions"),
        ("1f1b --graph two-tower:999999999", "1,999,999,999 stages"),
        ("1f1b --graph two-tower:0", "at least 1 stage"),
        ("1f1b --graph tree", "neither two-tower:T nor inception nor a JSON file"),
        ("1f1b --graph nowhere.json", "nowhere.json: cannot be read"),
        ("gpipe --graph inception -d 3", "needs 6 devices, not 3"),
        ("zbv --graph inception", "needs a chain"),
        ("gpipe --variant lean", "one of its own variants"),
        ("1f1b --pipes 2", "single pipeline"),
        ("1f1b --nonsense", "No such option"),
        ("1f1b gpipe", "unexpected extra argument"),
        ("", "Missing argument 'NAME'"),
    ],
)
def test_it_is_refused_with_a_reason(command: str, words: str, fragment: str) -> None:
    refused(weft(command, *words.split()), fragment)


def test_an_unknown_command_or_option_is_refused_with_the_nearest() -> None:
    refused(weft("drow", "1f1b"), "No such command 'drow'; did you mean draw?")
    refused(weft("xyz"), "No such command 'xyz'.")
    refused(weft("completion"), "Choose from: bash, zsh, fish.")
    refused(weft("draw", "1f1b", "--microbach", "3"), "did you mean --microbatch")


def test_a_file_that_cannot_be_written_is_named() -> None:
    refused(weft("export", "1f1b", "-o", "/dev/full"), "/dev/full cannot be written: No space")


def test_a_file_without_a_folder_is_refused() -> None:
    refused(weft("compare", "1f1b", "-o", "nowhere/x.html"), "there is no folder", "nowhere")
    refused(weft("export", "1f1b", "-o", "nowhere/x.json"), "there is no folder", "nowhere")
    refused(weft("draw", "1f1b", "-o", "nowhere/x.svg"), "there is no folder", "nowhere")
    refused(weft("profile", "--out", "nowhere/cost.json"), "there is no folder", "nowhere")


def test_list_and_compare_suggest_the_nearest_schedule() -> None:
    refused(weft("list", "zb-v"), "Did you mean zbv?")
    refused(weft("compare", "gpip"), "Did you mean gpipe?")


PROGRAM = to_text(one_f_one_b(devices=2, microbatches=2))
JSON = to_json(one_f_one_b(devices=2, microbatches=2))


@pytest.mark.parametrize(
    ("content", "fragment"),
    [
        (PROGRAM[: PROGRAM.rindex("1B1") + 2].encode(), ", line 7: "),
        (JSON[: len(JSON) // 2].encode(), "line "),
        (b"", "empty"),
        (b"\xff\xfe\x00", "line 1: not text"),
        (b"[" * 100_000, "line 1"),
        (b'{"format": ' + b"[" * 100_000, "nested too deeply"),
        (PROGRAM.replace("microbatches 2", "microbatches 999999999").encode(), "microbatches"),
        (b"__import__('os').system('touch hacked')", "line 1"),
        (b"\x80\x04\x95cposix\nsystem\n", "line 1: not text"),
    ],
    ids=["truncated", "half", "empty", "binary", "brackets", "nested", "huge", "code", "pickle"],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_hostile_file_is_refused_with_its_line(
    command: str, content: bytes, fragment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("program.txt").write_bytes(content)
    refused(weft(command, "program.txt"), "program.txt", fragment)
    assert [path.name for path in tmp_path.iterdir()] == ["program.txt"]


def test_a_broken_table_is_reported_by_its_cell(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("0F0,0B0\nq,1B0\n")
    refused(weft("verify", str(path)), "table.csv, line 2: 'q' is not an action of torch's")
    path.write_text("rank,action\n")
    refused(weft("verify", str(path)), "table.csv, line 1: ", "'rank'")


def test_a_file_has_its_own_shape(tmp_path: Path) -> None:
    path = tmp_path / "program.txt"
    path.write_text(PROGRAM)
    refused(weft("draw", str(path), "-d", "4", "--graph", "inception"), "--devices and --graph")


def test_a_cost_of_other_stages_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_text('{"format": "weft.cost", "version": 1, "stages": [{"forward": 1}]}')
    refused(weft("simulate", "1f1b", "--cost", str(path)), "describes 1 stages, 1f1b has 4")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    refused(weft("verify", str(tmp_path)), "a folder; give a file")
    refused(weft("export", "1f1b", "-o", str(tmp_path)), "is a folder")


def test_a_name_out_of_a_file_cannot_command_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "program.txt"
    path.write_text(PROGRAM.replace("name 1f1b", "name \\u001b[2Jgone"))
    assert weft("draw", str(path)).stdout.startswith("?[2Jgone: 2 devices")

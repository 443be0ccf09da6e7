"""`weft export`: programs and timelines that read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import refused, weft
from weft.lower import unwired, updates, wires
from weft.notation import from_json, read_program
from weft.schedules import zbv
from weft.timeline import Timeline

PROGRAM = zbv(devices=4, microbatches=8)


@pytest.mark.parametrize("form", ["text", "json", "torch-csv"])
def test_a_program_reads_back(form: str, tmp_path: Path) -> None:
    path = tmp_path / "program"
    result = weft("export", "zbv", "-d", "4", "-n", "8", "--format", form, "-o", str(path))
    assert (result.exit_code, result.output) == (0, "")
    assert read_program(path) == PROGRAM


def test_lowered_programs_have_wires_and_updates(tmp_path: Path) -> None:
    path = tmp_path / "program"
    weft("export", "zbv", "--lower", "-o", str(path))
    assert read_program(path) == updates(wires(PROGRAM))


def test_a_lowered_table_for_torch_is_proved(tmp_path: Path) -> None:
    path = tmp_path / "zbv.csv"
    weft("export", "zbv", "--lower", "--format", "torch-csv", "-o", str(path))
    assert unwired(read_program(path)) == PROGRAM
    assert weft("verify", str(path)).exit_code == 0


@pytest.mark.parametrize("lower", [[], ["--lower"]], ids=["plain", "lowered"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("chimera", "no second pipe"),
        ("chimera --variant doubling", "no second pipe, no action over several microbatches"),
        ("gpipe --variant recompute", "no recomputation"),
        ("pipedream", "no program that repeats, no weight versions"),
        ("1f1b --graph two-tower:2", "no graph that branches"),
    ],
)
def test_what_torch_cannot_express_is_reported(name: str, words: str, lower: list[str]) -> None:
    refused(weft("export", *name.split(), "--format", "torch-csv", *lower), words)


def test_a_program_that_repeats_is_lowered_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "program"
    assert weft("export", "pipedream", "--lower", "-o", str(path)).exit_code == 0
    program = read_program(path)
    assert program.period is not None
    assert any(lane.channel for lane in program.lanes)


def test_a_trace_has_a_slice_for_each_action() -> None:
    trace = json.loads(weft("export", "zbv", "--format", "perfetto").stdout)
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) == len(PROGRAM)


def test_timelines_read_back() -> None:
    exported = weft("export", "zbv", "--latency", "0.5", "--format", "timeline-json").stdout
    timeline = from_json(exported)
    assert isinstance(timeline, Timeline)
    assert timeline.program == PROGRAM
    assert timeline.cost.network.default.latency == 0.5


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "program.txt"
    path.write_text("before")
    refused(weft("export", "dualpipe", "--format", "torch-csv", "-o", str(path)), "second pipe")
    assert path.read_text() == "before"
    assert weft("export", "1f1b", "-o", str(path)).exit_code == 0
    assert path.read_text().startswith("weft program 1")
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_keeps_pointing_at_its_file(tmp_path: Path) -> None:
    path, link = tmp_path / "program.txt", tmp_path / "link"
    link.symlink_to(path)
    assert weft("export", "1f1b", "-o", str(link)).exit_code == 0
    assert link.is_symlink()
    assert path.read_text().startswith("weft program 1")


def test_what_is_no_plain_file_is_written_to() -> None:
    assert weft("export", "1f1b", "-o", "/dev/null").exit_code == 0
    assert Path("/dev/null").is_char_device()


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    refused(weft("export", "1f1b", "-o", str(tmp_path / "none" / "program")), "cannot be written")

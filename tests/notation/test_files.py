from __future__ import annotations

from pathlib import Path

import pytest

from tests.notation.examples import one_f_one_b
from weft.cost import DEVICES, MODELS
from weft.errors import NotationError
from weft.notation import (
    read_cost,
    read_device,
    read_graph,
    read_model,
    read_program,
    read_timeline,
    to_json,
    to_text,
    to_torch_csv,
)
from weft.simulate import simulate

PROGRAM = one_f_one_b(devices=2, microbatches=3)
TIMELINE = simulate(PROGRAM)


@pytest.mark.parametrize(
    "text",
    [
        to_text(PROGRAM),
        "# mine\n\n" + to_text(PROGRAM),
        "\ufeff" + to_text(PROGRAM),
        to_json(PROGRAM),
        "\n" + to_json(PROGRAM),
        to_torch_csv(PROGRAM),
        "," + to_torch_csv(PROGRAM),
    ],
)
def test_the_content_decides_the_notation(tmp_path: Path, text: str) -> None:
    path = tmp_path / "program.txt"
    path.write_text(text, encoding="utf-8")
    assert read_program(path) == PROGRAM
    assert read_program(str(path)) == PROGRAM


def test_costs_timelines_and_graphs_are_read(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_text(to_json(TIMELINE.cost))
    assert read_cost(path) == TIMELINE.cost
    path.write_text(to_json(TIMELINE))
    assert read_timeline(path).makespan == TIMELINE.makespan
    path.write_text('{"stages": 2}')
    assert len(read_graph(path)[0]) == 2


def test_models_and_devices_are_read(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_text(to_json(MODELS["kimi-k2"]))
    assert read_model(path) == MODELS["kimi-k2"]
    with pytest.raises(NotationError, match="a model, not a device"):
        read_device(path)
    path.write_text(to_json(DEVICES["h800"]))
    assert read_device(str(path)) == DEVICES["h800"]
    with pytest.raises(NotationError, match="a device, not a model"):
        read_model(path)


def test_one_document_is_not_taken_for_another(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_text(to_json(TIMELINE.cost))
    with pytest.raises(NotationError, match="a cost, not a program"):
        read_program(path)
    with pytest.raises(NotationError, match="a cost, not a timeline"):
        read_timeline(path)
    path.write_text(to_json(PROGRAM))
    with pytest.raises(NotationError, match="a program, not a cost"):
        read_cost(path)


def test_a_timeline_is_no_program_and_its_refusal_says_where_that_is(tmp_path: Path) -> None:
    path = tmp_path / "predicted.json"
    path.write_text(to_json(TIMELINE))
    with pytest.raises(NotationError, match=r"a timeline, not a program.* program\.txt"):
        read_program(path)


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        (b"", None, "empty"),
        (b" \n\t\n", None, "empty"),
        (b"weft program 1\nname \xff\xfe\n", 2, "not UTF-8"),
        (b"\x7fELF\x02\x01\x01\x00\x00", 1, "begins with the line"),
        (b"\x00" * 100, 1, "begins with the line"),
        (b"hello", 1, "begins with the line"),
        (b"{", 1, "not JSON"),
        (b"{]", 1, "not JSON"),
        (b"0F0,oops", 1, "is not an action of torch's"),
    ],
)
def test_what_is_no_program_is_refused(
    tmp_path: Path, content: bytes, line: int | None, reason: str
) -> None:
    path = tmp_path / "broken"
    path.write_bytes(content)
    with pytest.raises(NotationError) as refusal:
        read_program(path)
    assert reason in refusal.value.reason
    assert (refusal.value.source, refusal.value.line) == (str(path), line)


def test_a_directory_a_missing_file_and_no_path_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", "a\0b"):
        with pytest.raises(NotationError, match="cannot be read"):
            read_program(path)
    with pytest.raises(NotationError, match=r"a folder; give a file, .* its program\.txt"):
        read_program(tmp_path)


def test_an_endless_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.notation.files.MOST_BYTES", 1 << 20)
    with pytest.raises(NotationError, match="longer than the 1 MiB"):
        read_program("/dev/zero")

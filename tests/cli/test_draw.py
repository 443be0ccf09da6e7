"""`weft draw`: pictures and plain lanes."""

from __future__ import annotations

from pathlib import Path

from tests.cli.running import weft
from weft.draw import plain
from weft.notation import plain as plain_lanes
from weft.schedules import dualpipe, one_f_one_b
from weft.simulate import simulate


def test_a_pipe_gets_letters_within_120_columns() -> None:
    expected = plain(simulate(one_f_one_b(devices=4, microbatches=8)), width=120)
    assert weft("draw", "1f1b", "-d", "4", "-n", "8").stdout == f"{expected}\n"


def test_width_can_be_set() -> None:
    expected = plain(simulate(one_f_one_b(devices=4, microbatches=8)), width=50)
    assert weft("draw", "1f1b", "--width", "50").stdout == f"{expected}\n"


def test_text_is_one_line_for_each_device() -> None:
    assert weft("draw", "interleaved-1f1b", "-d", "2", "-n", "2", "-k", "2", "--text").stdout == (
        "F0 F1 F0' F1' B0' B1' B0 B1\nF0 F1 F0' B0' F1' B1' B0 B1\n"
    )


def test_text_shows_pairs() -> None:
    drawn = weft("draw", "dualpipe", "-d", "4", "-n", "8", "--text").stdout
    assert drawn == f"{plain_lanes(dualpipe(devices=4, microbatches=8))}\n"
    assert "F3|B5'" in drawn


def test_colour_can_be_had_and_refused() -> None:
    assert "\x1b[" in weft("draw", "1f1b", "--color").stdout
    for refusal in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "F0F1" in weft("draw", "1f1b", "--width", "80", FORCE_COLOR="1", **refusal).stdout
    assert "\x1b[" not in weft("draw", "1f1b", "--no-color", FORCE_COLOR="1").stdout
    assert "\x1b[" in weft("draw", "1f1b", FORCE_COLOR="1", TERM="xterm").stdout


def test_a_program_in_a_file_is_drawn(tmp_path: Path) -> None:
    drawn = weft("draw", "zbv", "-d", "4", "-n", "8").stdout
    for form in ("text", "json"):
        path = tmp_path / f"program.{form}"
        assert weft("export", "zbv", "--format", form, "-o", str(path)).exit_code == 0
        assert weft("draw", str(path)).stdout == drawn

"""`weft draw`: pictures and plain lanes."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.running import refused, weft
from weft.draw import View, plain
from weft.draw.bands import streams
from weft.draw.palette import SAFE
from weft.ir.kinds import Kind
from weft.lower import executable
from weft.notation import from_text, to_text
from weft.notation import plain as plain_lanes
from weft.schedules import chimera, dualpipe, one_f_one_b
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


def test_what_ranks_walk_is_drawn_lane_by_lane() -> None:
    timeline = simulate(executable(chimera(devices=4, microbatches=4)))
    expected = plain(timeline, width=120, view=View(bands_of=streams))
    drawn = weft("draw", "chimera", "-d", "4", "-n", "4", "--lowered").stdout
    assert drawn == f"{expected}\n"
    assert "U update   S sum of gradients   P send to another device" in drawn
    rows = {line[:9]: line[10:] for line in drawn.splitlines()[1:9]}
    assert rows["0 comm   "].count("S") == rows["0 comm   "].count("P") - 2 == 2
    assert rows["1 compute"].count("U") == 2


def test_what_ranks_walk_is_text_that_commands_read(tmp_path: Path) -> None:
    words = ("draw", "dualpipe", "-d", "4", "-n", "8")
    text = weft(*words, "--lowered", "--text").stdout
    assert from_text(text) == executable(dualpipe(devices=4, microbatches=8))
    path = tmp_path / "dualpipe.weft"
    path.write_text(text)
    assert weft("verify", str(path)).exit_code == 0
    assert weft("draw", str(path), "--lowered", "--text").stdout == text


def test_passes_and_ties_of_a_file_are_in_what_ranks_walk(tmp_path: Path) -> None:
    text = weft("draw", "1f1b", "-d", "3", "-n", "4", "--offload", "all", "--lowered", "--text")
    assert "device 0 offload: off:0F0" in text.stdout
    tied = one_f_one_b(devices=3, microbatches=4)
    path = tmp_path / "tied.weft"
    path.write_text(to_text(tied.with_lanes(tied.contents(), ties=((0, 2),))))
    lanes = weft("draw", str(path), "--lowered", "--text").stdout.splitlines()
    assert "device 2 reduce: reduce:2@0~0" in lanes
    assert lanes[8].endswith("2U@0 2U@0~0")


def test_an_asynchronous_run_is_drawn_as_ranks_walk_it() -> None:
    drawn = weft("draw", "pipedream-2bw", "-d", "2", "-n", "2", "--updates", "3", "--lowered")
    rows = [line for line in drawn.stdout.splitlines() if line[2:9] == "compute"]
    assert [row.count("U") for row in rows] == [3, 3]


def test_a_picture_shows_sums_in_front_of_sends(tmp_path: Path) -> None:
    output = tmp_path / "chimera.svg"
    words = ("draw", "chimera", "-d", "2", "-n", "2", "--lowered", "-o", str(output))
    assert weft(*words).exit_code == 0
    svg = output.read_text()
    assert "sum of gradients" in svg
    sends, sums = (_group(svg, SAFE.hues[kind]) for kind in (Kind.SEND_ACTIVATION, Kind.REDUCE))
    assert svg.index(sends) < svg.index(sums)
    heights = [float(re.findall(r'height="([0-9.]+)"', each)[0]) for each in (sends, sums)]
    assert heights[1] < 0.6 * heights[0]


def _group(svg: str, code: str) -> str:
    """The first boxes of a colour."""
    found = re.search(rf'<g fill="#{code}">.*?</g>', svg, re.DOTALL)
    assert found is not None
    return found[0]


def test_rows_are_asked_for_once() -> None:
    refusal = weft("draw", "1f1b", "--lowered", "--streams")
    assert refusal.exit_code == 2
    assert "leave out one" in refusal.stderr
    refused(weft("draw", "1f1b", "--text", "--streams"), "leave out --streams")


def test_a_program_that_ranks_run_is_drawn_with_lowered(tmp_path: Path) -> None:
    path = tmp_path / "program.txt"
    path.write_text(weft("draw", "1f1b", "-d", "2", "-n", "4", "--lowered", "--text").stdout)
    refused(weft("draw", str(path), "--streams"), "is drawn with --lowered")
    assert weft("draw", str(path), "--lowered").exit_code == 0

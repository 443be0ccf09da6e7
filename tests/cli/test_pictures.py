"""`weft draw -o`: pictures in files, their options, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.running import refused, weft
from weft.draw import Look, View, Window, plain, to_svg
from weft.draw.look import DARK
from weft.draw.palette import SEEDS
from weft.draw.size import Size
from weft.schedules import one_f_one_b
from weft.simulate import simulate

TIMELINE = simulate(one_f_one_b(devices=4, microbatches=8))


def test_an_svg_is_what_python_draws(tmp_path: Path) -> None:
    path = tmp_path / "x.svg"
    assert weft("draw", "1f1b", "-o", str(path)).stdout == ""
    assert path.read_text() == to_svg(TIMELINE)


def test_every_option_reaches_the_picture(tmp_path: Path) -> None:
    path = tmp_path / "x.SVG"
    options = "--size 120mm --theme dark --palette seeds --memory --only 0,3 --window 0:20"
    done = weft("draw", "1f1b", "-o", str(path), *options.split(), "--count-from", "1")
    assert done.exit_code == 0
    view = View(only=(0, 3), window=Window(0, 20), count_from=1, palette=SEEDS)
    look = Look(size=Size.of("120mm"), theme=DARK, has_memory=True)
    assert path.read_text() == to_svg(TIMELINE, view=view, look=look)


def test_a_text_file_gets_letters(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    assert weft("draw", "1f1b", "-o", str(path)).exit_code == 0
    assert path.read_text() == plain(TIMELINE, width=120) + "\n"


@pytest.mark.parametrize(
    ("size", "pixels"), [("500x300", [500, 300]), ("4x2in", [1200, 600]), ("127mm", [1500, None])]
)
def test_a_png_has_the_size_asked_for(tmp_path: Path, size: str, pixels: list[int | None]) -> None:
    pytest.importorskip("resvg_py")
    path = tmp_path / "x.png"
    assert weft("draw", "1f1b", "-o", str(path), "--size", size).exit_code == 0
    png = path.read_bytes()
    for at, side in zip((16, 20), pixels, strict=True):
        assert side in (None, int.from_bytes(png[at : at + 4], "big"))


def test_the_terminal_takes_the_same_view() -> None:
    drawn = weft("draw", "1f1b", "--only", "3", "--window", "3:9", "--count-from", "1").stdout
    view = View(only=(3,), window=Window(3, 9), count_from=1)
    assert drawn == plain(TIMELINE, width=120, view=view) + "\n"
    assert drawn.splitlines()[1] == "3 F1 B1    F2 B2    |"


def test_the_papers_colours_reach_the_terminal() -> None:
    usual, seeds = (
        weft("draw", "1f1b", "--color", "--palette", palette).stdout
        for palette in ("safe", "seeds")
    )
    assert usual == weft("draw", "1f1b", "--color").stdout
    assert usual != seeds


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        ("-o x.gif", "ends in one of .svg, .png, .txt"),
        ("-o x", "ends in one of .svg"),
        ("-o x.svg --size large", "is no size; write 800, 800x300"),
        ("-o x.svg --size 9999999", "40 to 20,000 pixels"),
        ("-o x.svg --size 300x60", "pixels or more"),
        ("-o x.svg --theme sepia", "'sepia' is not one of 'light', 'dark'"),
        ("-o x.svg --palette neon", "'neon' is not one of 'safe', 'seeds'"),
        ("-o none/x.svg", "cannot be written"),
        ("--size 800", "add -o FILE.svg or FILE.png"),
        ("--theme dark", "add -o FILE.svg or FILE.png"),
        ("-o x.txt --memory", "add -o FILE.svg or FILE.png"),
        ("--window 5", "not a stretch of time like 0:10"),
        ("--window 9:5", "not a stretch of time"),
        ("--window a:b", "not a stretch of time"),
        ("--window 40:50", "nothing happens from 40 to 50"),
        ("--only 0,9", "no device 9; they are numbered 0 to 3"),
        ("--only x", "is not a list of at most 65,536 numbers, like 0,3"),
        ("--count-from -1", "-1 is not a whole number from 0 to 1"),
        ("--text --only 0", "--text is the whole program"),
        ("--text -o x.svg", "--text is the whole program"),
    ],
)
def test_bad_input_is_refused_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, fragment: str
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(weft("draw", "1f1b", *options.split()), fragment)
    assert not list(tmp_path.iterdir())


def test_a_folder_is_no_picture(tmp_path: Path) -> None:
    folder = tmp_path / "x.svg"
    folder.mkdir()
    refused(weft("draw", "1f1b", "-o", str(folder)), "is a folder")


def test_without_its_package_png_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    path = tmp_path / "x.png"
    refused(weft("draw", "1f1b", "-o", str(path)), "pip install 'weft[png]'")
    assert not path.exists()
    assert weft("draw", "1f1b", "-o", str(path.with_suffix(".svg"))).exit_code == 0


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("weft draw 1f1b --theme ", ["light", "dark"]),
        ("weft draw 1f1b --palette s", ["safe", "seeds"]),
        ("weft draw 1f1b --pal", ["--palette"]),
        ("weft draw 1f1b --win", ["--window"]),
        ("weft draw 1f1b --si", ["--size"]),
    ],
)
def test_options_complete_in_the_shell(words: str, names: list[str]) -> None:
    last = str(len(words.split(" ")) - 1)
    completed = weft(_WEFT_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=last)
    assert [line.split(",", 1)[1] for line in completed.stdout.split()] == names

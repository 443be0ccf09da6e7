"""The figures of the papers come out recognisably: each is fixed as text, and held to its claim.

`figures/` has a file for each figure: which one it is, the command that draws it, what it prints.
The paper on WPipe has Figs. 1 to 5 and 15, the lecture its six timelines, Kimi K2 its Fig. 7.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cli.running import weft

FOLDER = Path(__file__).parent / "figures"
FIGURES = sorted(path.stem for path in FOLDER.glob("*.txt"))


def pictures(name: str) -> list[tuple[list[str], str]]:
    """The commands of a figure, as words, and what each prints."""
    _, *blocks = (FOLDER / f"{name}.txt").read_text().split("\n$ weft ")
    split = (block.partition("\n") for block in blocks)
    return [(command.split(), printed) for command, _, printed in split]


def rows(name: str, picture: int = 0) -> list[str]:
    """The rows of a picture, without their labels."""
    lines = pictures(name)[picture][1].splitlines()
    return [line.split(" ", 1)[1].removesuffix("|") for line in lines if line.endswith("|")]


def labels(row: str) -> list[str]:
    """F1 B1 F2: what a row says, in order; U where weights are updated."""
    return re.findall(r"[A-Za-z]\d+'?|U", row)


def bubble(name: str, picture: int = 0) -> str:
    shown = pictures(name)[picture][1].partition("bubble wall ")[2]
    return shown.split()[0]


def test_no_figure_is_missing() -> None:
    wpipe = [f"wpipe-{number}" for number in ("1", "15", "2a", "2b", "2c", "2d", "3", "4c", "5")]
    lecture = ["1f1b", "chimera", "device-placement", "gpipe", "interleaved", "naive"]
    k2 = ["kimi-k2-grid", "kimi-k2-phases"]
    assert [*k2, *(f"lecture-{name}" for name in lecture), *wpipe] == FIGURES


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_as_it_was(name: str) -> None:
    for words, printed in pictures(name):
        assert weft(*words).stdout.rstrip("\n") == printed.rstrip("\n")


@pytest.mark.parametrize("name", FIGURES)
def test_the_command_of_a_figure_is_documented(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "figures.md").read_text()
    for words, _ in pictures(name):
        command = " ".join(words[: words.index("--width")])
        assert f"<!-- $ weft {command} --size" in page


# WPipe (Yang et al. 2022)


def test_figure_1_only_one_device_works_at_a_time() -> None:
    assert bubble("wpipe-1", 0) == "75.0%"
    columns = zip(*rows("wpipe-1", 0), strict=True)
    assert all(sum(sign != "." for sign in column) == 1 for column in columns)


def test_figure_1_naive_pipelining_mixes_versions() -> None:
    assert "F2₀" in rows("wpipe-1", 1)[0]
    assert "B2₁" in rows("wpipe-1", 1)[0]


def test_figure_2a_and_2b_differ_in_when_backwards_run() -> None:
    gpipe, synchronous = rows("wpipe-2a"), rows("wpipe-2b")
    assert labels(gpipe[2])[:4] == ["F1", "F2", "F3", "F4"]
    assert labels(synchronous[2])[:4] == ["F1", "B1", "F2", "B2"]
    for row in gpipe + synchronous:
        assert labels(row).count("U") == 2  # once in a mini-batch


def test_figure_2c_pipedream_updates_at_every_microbatch_and_stashes() -> None:
    first = rows("wpipe-2c")[0]
    assert labels(first).count("U") == 6
    assert "F4₁ B2₀" in first.replace("U", "")


def test_figure_2d_microbatches_2_and_4_update() -> None:
    for row in rows("wpipe-2d"):
        shown = labels(row)
        updating = [before for before, sign in pairwise(shown) if sign == "U"]
        assert updating == ["B2", "B4", "B6"]


def test_figure_3_no_forward_passes_an_update_any_more() -> None:
    overlapped = labels(rows("wpipe-2d")[0])
    assert overlapped.index("F4") < overlapped.index("U")
    for row in rows("wpipe-3"):
        shown = labels(row)
        for period in range(3):
            steps = shown[5 * period : 5 * period + 5]
            assert {*steps[:4]} == {f"{kind}{2 * period + n}" for kind in "FB" for n in (1, 2)}
            assert steps[4] == "U"
    assert bubble("wpipe-3") > bubble("wpipe-2d")


def test_figure_4c_has_the_order_of_the_authors_code() -> None:
    last = "F1 F2 F3 F4 F1' B1' F2' B2' F3' B3' F4' B4' U F5 B1 F6 B2 F7 B3 F8 B4 U F5' B5' F6'"
    first = "F1 F2 F3 F4 F1' F2' F3' F4' B1' F5 B2' F6 B3' F7 B4' U F8 B1 F5' B2 F6' B3 F7' B4 U"
    assert labels(rows("wpipe-4c")[3])[:25] == last.split()
    assert labels(rows("wpipe-4c")[0])[:25] == first.split()


def test_figure_5_only_the_first_group_is_stale() -> None:
    for row in rows("wpipe-5"):
        for letter, number, prime, version in re.findall(r"([FB])(\d)('?)([₀₁₂])", row):
            period = (int(number) - 1) // 3
            used = "₀₁₂".index(version)
            assert used == (period if prime else max(0, period - 1)), letter


def test_figure_15_groups_in_turn() -> None:
    shown = " ".join(labels(rows("wpipe-15")[3]))
    assert shown == ("F1 F2 F3 F4 F1' F2' F3' F4' B1' B2' B3' B4' B1 B2 B3 B4")


# the lecture


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("naive", 3 / 4),  # (D - 1) / D
        ("gpipe", 3 / (3 + 6)),  # (D - 1) / (D - 1 + N)
        ("1f1b", 3 / (3 + 6)),
        ("interleaved", 3 / (3 + 2 * 8)),  # (D - 1) / (D - 1 + K N)
        ("chimera", 2 / (2 + 2 * 4)),  # (D - 2) / (D - 2 + 2 N)
    ],
)
def test_the_lectures_bubbles(name: str, share: float) -> None:
    assert bubble(f"lecture-{name}") == f"{100 * share:.1f}%"


def test_1f1b_has_the_latency_of_gpipe_and_earlier_backwards() -> None:
    one, other = (pictures(f"lecture-{name}")[0][1] for name in ("1f1b", "gpipe"))
    assert "time 27" in one
    assert "time 27" in other
    early, late = (rows(f"lecture-{name}")[3] for name in ("1f1b", "gpipe"))
    assert early.index("B1") < late.index("B1")


def test_chimera_runs_both_ways() -> None:
    first, *_, last = rows("lecture-chimera")
    assert labels(first)[:2] == ["F1", "F2"]
    assert labels(last)[:2] == ["F3'", "F4'"]


def test_branches_run_at_the_same_time_on_devices_of_their_own() -> None:
    stem, *branches, head = rows("lecture-device-placement", 0)
    assert len(branches) == 4
    assert len(set(branches)) == 1
    assert stem.index("F1") < branches[0].index("F1") < head.index("F1")
    towers = rows("lecture-device-placement", 1)
    assert towers[:2] == towers[2:4]


# Kimi K2, Fig. 7

GRID = """\
1 2 3 4 1 2 3 4 5 6 7 | 8 1 5 2 6 3 7 4 8 1 | 2 3 4 5 6 7 8 5 6 7 8
1 2 3 4 1 2 3 4 5 | 6 1 7 2 8 3 5 4 6 1 7 2 8 3 | 4 5 6 7 8 5 6 7 8
1 2 3 4 1 2 3 | 4 1 5 2 6 3 7 4 8 1 5 2 6 3 7 4 8 5 | 6 7 8 5 6 7 8
1 2 3 4 1 | 2 1 3 2 4 3 5 4 6 1 7 2 8 3 5 4 6 5 7 6 8 7 | 8 5 6 7 8"""


def test_the_grid_of_kimi_k2() -> None:
    for row, numbers in zip(rows("kimi-k2-grid"), GRID.splitlines(), strict=True):
        computed = [label for label in labels(row) if label[0] in "FI"]
        assert [label[1] for label in computed] == numbers.replace("| ", "").split()


def letters(row: str) -> str:
    """The letters of a row, in order, without numbers."""
    return "".join(re.findall(r"[A-Za-z]", row.split(" ", 1)[1]))


def test_the_three_phases_of_kimi_k2() -> None:
    found = [letters(row) for row in rows("kimi-k2-phases")]
    warm_up, steady, cool_down = found[:3], found[3:6], found[6:]
    assert warm_up[0].startswith("AEAE")
    assert "DCPDCPDCP" in warm_up[1]
    assert set(warm_up[2]) == {"O"}
    assert "AeEaWAeEaW" in steady[0]
    assert "DdCcPDdCcP" in steady[1]
    assert "LOLO" in steady[2]
    assert "eaWeaW" in cool_down[0]
    assert "dcPdcP" in cool_down[1]
    assert set(cool_down[2]) == {"L"}

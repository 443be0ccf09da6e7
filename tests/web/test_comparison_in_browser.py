"""The page that `weft compare -o` writes, in a real browser: what it opens on, and sets beside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import weft
from tests.web.browser import Browser, Page
from tests.web.driving import opened, press_button, words
from tests.web.pages import content

pytestmark = pytest.mark.timeout(300)  # the first test may have to install the browser


@pytest.fixture(scope="module")
def all_of_them(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compared") / "all.html"
    assert weft("compare", "-d", "4", "-n", "8", "-o", str(path)).exit_code == 0
    return path


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all but naive run out of memory."""
    path = tmp_path_factory.mktemp("compared") / "short.html"
    names = ("naive", "gpipe", "1f1b", "interleaved-1f1b", "pipedream-2bw", "zbv")
    machine = ("--model", "gpt-28.3b", "--microbatch-size", "4", "--device", "a100")
    assert weft("compare", *names, "-d", "8", "-n", "64", *machine, "-o", str(path)).exit_code == 0
    return path


def chips(page: Page) -> list[str]:
    found: list[str] = page.run(
        "[...document.querySelectorAll('#timelines .chip')].map((one) => one.innerText)"
    )
    return found


def show(page: Page, name: str) -> None:
    page.run(f"weft.toggle(weft.timelines.find((one) => one.name === {json.dumps(name)}))")


def figure(timeline: dict[str, Any], name: str) -> float:
    (found,) = [one["value"] for one in timeline["figures"] if one["name"] == name]
    return float(found)


def test_it_opens_on_1f1b(browser: Browser, all_of_them: Path) -> None:
    page = opened(browser, all_of_them)
    assert page.run("weft.shown().map((one) => one.name)") == ["1f1b"]
    assert page.faults == []


def test_a_run_is_set_against_a_step_by_its_step_once_settled(
    browser: Browser, all_of_them: Path
) -> None:
    """8 microbatches of each: 24 against 33, not 3.3 for one update, nor 105 for 32 of them."""
    page = opened(browser, all_of_them)
    show(page, "pipedream")
    page.run("document.getElementById('tab-comparison').click()")
    text = words(page, "#panel")
    assert "Changes are against 1f1b." in text
    assert "step\t33\t24\t−27.3%" in text
    assert "pipedream: of 8 microbatches, once settled" in text
    assert "messages\t48\t48\t=" in text
    assert "75" not in text


def test_every_figure_that_adds_up_is_of_one_step(all_of_them: Path) -> None:
    for timeline in content(all_of_them.read_text())["timelines"]:
        assert timeline["step"] == 8
        assert figure(timeline, "step") == pytest.approx(8 * figure(timeline, "per microbatch"))
        assert 24 <= figure(timeline, "step") <= 96
        assert 36 <= figure(timeline, "messages") <= 112


def test_many_chips_are_in_groups_and_can_be_filtered(browser: Browser, all_of_them: Path) -> None:
    page = opened(browser, all_of_them)
    assert "zbv" in chips(page)
    assert "naive-async" not in chips(page)
    press_button(page, "#timelines .groups button", "stale weights")
    assert {"naive-async", "1f1b"} <= set(chips(page))  # what is on show stays
    assert "zbv" not in chips(page)
    page.run(
        """(() => {
          const field = document.querySelector('#timelines input');
          field.value = "Lean";
          field.dispatchEvent(new Event("input"));
        })()"""
    )
    assert chips(page) == ["1f1b", "interleaved-1f1b (lean)"]


def test_few_chips_stand_by_themselves(browser: Browser, folder: Path) -> None:
    page = opened(browser, folder / "two.html")
    assert chips(page) == ["1f1b", "zbv"]
    assert page.run("document.querySelector('#timelines input').hidden")
    alone = opened(browser, folder / "small.html")
    assert alone.run("document.getElementById('timelines').hidden")


def test_what_would_help_is_in_the_file(browser: Browser, all_of_them: Path) -> None:
    page = opened(browser, all_of_them)
    page.run("document.getElementById('tab-helps').click()")
    for name in ("zbv", "pipedream", "interleaved-1f1b"):
        show(page, name)
    text = words(page, "#panel")
    assert "Being computed" not in text
    assert text.count("If everything were different in one way") == 4
    assert "run gains" in text  # of pipedream, which is many steps


def test_what_a_file_does_not_hold_is_said_not_to_be(browser: Browser, all_of_them: Path) -> None:
    page = opened(browser, all_of_them)
    page.run("delete weft.timelines[0].helps")
    page.run("document.getElementById('tab-helps').click()")
    assert "`weft explain` says it" in words(page, "#panel")
    assert "Being computed" not in words(page, "#panel")


def test_what_does_not_fit_is_no_best_and_stands_last(browser: Browser, short: Path) -> None:
    page = opened(browser, short)
    assert page.run("weft.shown().map((one) => one.name)") == ["1f1b --recompute all"]
    page.run("document.getElementById('tab-plot').click()")
    rows = [line.split("\t") for line in words(page, "#panel table").splitlines()[1:]]
    marks = {row[0]: row[3].strip() for row in rows[1:] if len(row) > 3}
    assert marks["zbv"] == marks["gpipe"] == "does not fit"
    assert marks["naive"] in ("", "●")
    names = list(marks)
    assert names.index("naive") < names.index("zbv")
    press_button(page, "#timelines .groups button", "does not fit")
    assert "zbv" in chips(page)
    assert page.faults == []


def test_one_of_two_sizes_of_step_is_said_to_be(browser: Browser, tmp_path: Path) -> None:
    from weft.schedules import one_f_one_b
    from weft.simulate import simulate
    from weft.web import write_page

    made = [simulate(one_f_one_b(devices=4, microbatches=count)) for count in (4, 8)]
    write_page(tmp_path / "sizes.html", made)
    page = opened(browser, tmp_path / "sizes.html")
    page.run("document.getElementById('tab-comparison').click()")
    text = words(page, "#panel")
    assert "Their steps have 4 and 8 microbatches: compare the times per microbatch." in text
    assert "per microbatch\t5.25\t4.125\t−21.4%" in text

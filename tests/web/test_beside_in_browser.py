"""What is beside the picture, in a real browser: tables, comparison, the address."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.web.browser import Browser
from tests.web.driving import middle_of, opened, settled, words
from tests.web.pages import OTHER, SMALL

pytestmark = pytest.mark.timeout(300)  # the first test may have to install the browser


def test_every_tab_has_a_table(browser: Browser, folder: Path) -> None:
    page = opened(browser, folder / "two.html")
    for name, text in [
        ("idle", "device 3"),
        ("comparison", "Changes are against 1f1b"),
        ("plot", "weft compare -o"),
        ("helps", "took 10% less"),
        ("actions", "actions 1 to 64 of 64"),
    ]:
        page.run(f"document.getElementById('tab-{name}').click()")
        assert text in words(page, "#panel")
        assert page.run("document.querySelectorAll('[role=tab][aria-selected=true]').length") == 1
    assert page.faults == []


def test_two_timelines_share_one_scale(browser: Browser, folder: Path) -> None:
    page = opened(browser, folder / "two.html")
    assert page.run("weft.extent") == SMALL.makespan
    assert middle_of(page, 0, 0)[1] < middle_of(page, 0, 1)[1]
    page.run("document.getElementById('tab-comparison').click()")
    assert "−22.7%" in words(page, "#panel")  # 25.5 against 33
    page.run("document.querySelector('#timelines .chip').click()")
    assert page.run("weft.shown().map((one) => one.name)") == ["zbv"]
    assert page.run("weft.extent") == OTHER.makespan


def test_predicted_and_measured_lie_under_each_other(browser: Browser, folder: Path) -> None:
    page = opened(browser, folder / "run.html")
    names = page.run(
        "weft.layout.rows.filter((row) => row.type === 'actions').map((row) => row.name)"
    )
    assert names == ["predicted", "measured"] * 4
    page.run("weft.select({ timeline: weft.timelines[1], action: 4 })")
    assert "takes, predicted\n2 s (+10.0% here)" in words(page, "#details")
    page.run("weft.set('colour', 'difference')")
    settled(page)
    assert "longer" in words(page, "#legend")
    assert page.faults == []


def test_versions_stand_in_labels(browser: Browser, folder: Path) -> None:
    page = opened(browser, folder / "versions.html")
    label = page.run("import('weft/names.js').then(({ labelOf }) => labelOf(weft.timelines[0], 0))")
    assert label == "F0₀"


def test_narrow_labels_keep_the_version(browser: Browser, folder: Path) -> None:
    page = opened(browser, folder / "versions.html")
    labels = page.run(
        "import('weft/names.js').then(({ shortLabelsOf }) => shortLabelsOf(weft.timelines[0], 0))"
    )
    assert labels == ["0₀", "0"]


@pytest.mark.parametrize("words", ["palette=none", "colour=__proto__", "tab=none", "at=9:9&to=x"])
def test_an_address_that_makes_no_sense_does_no_harm(
    browser: Browser, folder: Path, words: str
) -> None:
    page = browser.page()
    page.open(f"{(folder / 'small.html').as_uri()}#{words}")
    assert page.run("weft.options.palette + weft.options.colour + weft.tab") == "safekindidle"
    assert page.faults == []


def test_the_view_is_in_the_address(browser: Browser, folder: Path) -> None:
    page = opened(browser, folder / "small.html")
    page.run("weft.show(3, 9); weft.set('critical', true)")
    page.run("weft.select({ timeline: weft.timelines[0], action: 5 })")
    page.until("location.hash.includes('at=0%3A5')")
    again = browser.page()
    again.open(page.run("location.href"))
    assert again.run("weft.view.from") == pytest.approx(page.run("weft.view.from"))
    assert again.run("weft.view.to") == pytest.approx(page.run("weft.view.to"))
    assert again.run("weft.options.critical") is True
    assert again.run("weft.selection.action") == 5

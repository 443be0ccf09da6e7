"""The live page in a real browser: controls, refusals, comparison, files."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

import pytest

from tests.web.browser import Browser, Page
from tests.web.driving import drop, press_button, words
from weft.notation import to_torch_csv
from weft.schedules import one_f_one_b
from weft.simulate import simulate
from weft.web.server import Server

pytestmark = pytest.mark.timeout(300)  # the first test may have to install the browser


@pytest.fixture
def page(browser: Browser, live: Server) -> Page:
    made = browser.page()
    made.open(live.address)
    made.until("weft.timelines.length")
    return made


def test_live_it_asks_its_own_server_only(page: Page, live: Server) -> None:
    hosts = {urlsplit(address).netloc for address in page.requests if address[:5] != "data:"}
    assert hosts == {f"127.0.0.1:{live.port}"}
    assert page.faults == []


def test_a_slider_changes_the_timeline(page: Page) -> None:
    page.run(
        """(() => {
          const slider = document.querySelector('[aria-label="Devices"]');
          slider.value = 6;
          slider.dispatchEvent(new Event("input"));
        })()"""
    )
    page.until("weft.timelines[0].devices === 6")
    assert "6 devices" in words(page, "#details")


def choose(page: Page, schedule: str) -> None:
    page.run(
        f"""(() => {{
          const select = document.querySelector('[aria-label="Schedule"]');
          select.value = {json.dumps(schedule)};
          select.dispatchEvent(new Event("change"));
        }})()"""
    )


def test_what_cannot_be_says_why_and_is_mended(page: Page) -> None:
    choose(page, "dualpipe")
    page.until("weft.timelines[0].name === 'dualpipe'")
    page.run(
        """(() => {
          const number = document.querySelector('[aria-label="Devices, as a number"]');
          number.value = 3;
          number.dispatchEvent(new Event("input"));
        })()"""
    )
    page.until("document.querySelector('.refusal')")
    assert "dualpipe needs an even number of devices." in words(page, ".refusal")
    page.run("document.querySelector('.refusal button').click()")
    page.until("!document.querySelector('.refusal') && weft.timelines[0].devices === 4")


def test_compare_live_and_open_a_point(page: Page) -> None:
    press_button(page, "#controls button", "+")
    page.until("weft.timelines.length === 2")
    page.run("document.getElementById('tab-plot').click()")
    page.until("weft.points.some((point) => point.name === 'zbv')")
    page.run("""document.querySelector('.plot g[aria-label^="zbv:"]')
      .dispatchEvent(new Event("click"))""")
    page.until("weft.timelines.some((one) => one.name === 'zbv')")
    assert page.faults == []


def test_a_program_and_a_torch_table_dropped_live(page: Page) -> None:
    program = one_f_one_b(devices=2, microbatches=4)
    drop(page, "table.csv", to_torch_csv(program))
    page.until("weft.timelines.length === 2")
    assert page.run("weft.timelines[1].makespan") == simulate(program).makespan


def test_a_bad_file_dropped_live(page: Page) -> None:
    drop(page, "x.txt", "device 0: nonsense")
    assert "x.txt" in words(page, "#message")
    assert page.run("weft.timelines.length") == 1

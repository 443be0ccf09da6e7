"""The live page in a real browser: controls, refusals, comparison, files."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

import pytest

from tests.web.browser import Browser, Page
from tests.web.driving import drop, pick, press_button, slide, words
from weft.cost import DEVICES, Share, derive, model_named
from weft.notation import to_text, to_torch_csv
from weft.schedules import one_f_one_b
from weft.simulate import simulate
from weft.web import page as html_of
from weft.web.server import Server

pytestmark = pytest.mark.timeout(300)  # the first test may have to install the browser


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


def test_a_choice_keeps_the_focus(page: Page) -> None:
    press_button(page, "#controls button", "+")
    page.until("weft.timelines.length === 2")
    page.run("document.querySelectorAll('[aria-label=Schedule]')[1].focus()")
    page.run(
        """(() => {
          const select = document.activeElement;
          select.value = "gpipe";
          select.dispatchEvent(new Event("change"));
        })()"""
    )
    page.until("weft.timelines[1].name === 'gpipe'")
    assert page.run("document.activeElement.value") == "gpipe"


def test_a_model_on_a_device(page: Page) -> None:
    pick(page, "Costs", "model")
    page.until("weft.units.time.name")
    pick(page, "Device", "h100")
    pick(page, "Model", "gpt-14.6b")
    program = one_f_one_b(devices=4, microbatches=8)
    expected = simulate(program, derive(program, model_named("gpt-14.6b"), DEVICES["h100"]))
    page.until(f"Math.abs(weft.timelines[0].makespan - {expected.makespan}) < 1e-9")
    assert page.run("weft.timelines[0].capacity") == DEVICES["h100"].memory
    slide(page, "Memory of a device", 10)
    page.until(f"weft.timelines[0].capacity === {10 * 2**30}")
    assert page.faults == []


def test_updates_are_chosen_where_a_schedule_is_asynchronous(page: Page) -> None:
    assert "Updates" not in words(page, "#controls")
    choose(page, "pipedream")
    page.until("weft.timelines[0].name === 'pipedream'")
    before = page.run("weft.timelines[0].makespan")
    slide(page, "Updates", 4)
    page.until(f"weft.timelines[0].makespan > {before}")


def test_a_stage_that_takes_longer(page: Page) -> None:
    page.run("document.querySelector('#controls details').open = true")
    slide(page, "Stage 2 takes", 2)
    page.until("weft.timelines[0].idle.sums[2].work === 48")
    assert page.run("weft.timelines[0].idle.sums.map((of) => of.work)") == [24, 24, 48, 24]
    press_button(page, "#controls button", "All equal")
    page.until("weft.timelines[0].idle.sums[2].work === 24")


def test_a_dropped_program_stays_and_takes_the_costs(page: Page) -> None:
    program = one_f_one_b(devices=2, microbatches=4)
    drop(page, "program.txt", to_text(program))
    page.until("weft.timelines.length === 2")
    slide(page, "Forward", 3)
    longer = simulate(program, Share(forward=3).cost(program)).makespan
    page.until(f"weft.timelines[1]?.makespan === {longer}")
    press_button(page, "#controls button", "Remove program.txt")
    page.until("weft.timelines.length === 1")


def test_a_dropped_page_stays_as_it_is(page: Page) -> None:
    timeline = simulate(one_f_one_b(devices=2, microbatches=4))
    drop(page, "page.html", html_of([timeline]))
    page.until("weft.timelines.length === 2")
    slide(page, "Forward", 3)
    page.until("weft.timelines[0].makespan !== 33")
    assert page.run("weft.timelines[1].makespan") == timeline.makespan


def test_a_dragged_slider_ends_where_it_was_left(page: Page) -> None:
    page.run(
        """(() => {
          const slider = document.querySelector('[aria-label="Devices"]');
          for (let devices = 2; devices <= 16; devices++) {
            slider.value = devices;
            slider.dispatchEvent(new Event("input"));
          }
        })()"""
    )
    page.until("weft.timelines[0].devices === 16")
    asked = sum(address.endswith("/timelines") for address in page.requests)
    assert asked == 3  # at the beginning, for the first of these, and for the last


def test_a_link_brings_back_costs_view_and_selection(page: Page, browser: Browser) -> None:
    slide(page, "Weight gradient", 2)
    page.until("weft.timelines[0].makespan === 44")
    page.run("weft.show(3, 9); weft.select({ timeline: weft.timelines[0], action: 5 })")
    page.until("location.hash.includes('at=0%3A5')")
    again = browser.page()
    again.open(page.run("location.href"))
    assert again.run("weft.timelines[0].makespan") == 44
    assert again.run("weft.selection.action") == 5
    assert again.run("weft.view.to") == pytest.approx(page.run("weft.view.to"))
    again.run("location.hash = ''")
    again.until("weft.timelines[0].makespan === 33")
    assert again.faults == []


def test_a_server_that_is_gone_is_reported(page: Page) -> None:
    page.run("globalThis.fetch = async () => { throw new TypeError('Failed to fetch'); }; 0")
    slide(page, "Devices", 6)
    page.until("!document.getElementById('message').hidden")
    assert "Is it still running?" in words(page, "#message")


def test_a_bad_file_dropped_live(page: Page) -> None:
    drop(page, "x.txt", "device 0: nonsense")
    assert "x.txt" in words(page, "#message")
    assert page.run("weft.timelines.length") == 1


def test_a_schedule_out_of_the_address_has_its_usual_stages(browser: Browser, live: Server) -> None:
    page = browser.page()
    page.open(f'{live.address}#live={{"chosen":[{{"schedule":"interleaved-1f1b"}}]}}')
    page.until("weft.timelines.length")
    assert "8 stages" in page.run("weft.timelines[0].title")


def test_what_would_help_is_asked_again_where_it_was_asked_meanwhile(page: Page) -> None:
    """The tab is open while schedules come and go; nothing stays "being computed"."""
    page.run("document.getElementById('tab-helps').click()")
    press_button(page, "#controls button", "+")
    choose(page, "zbv")
    choose(page, "gpipe")
    page.until("weft.timelines.length === 2 && weft.timelines[0].name === 'gpipe'")
    page.until("weft.timelines.every((one) => one.helps)")
    page.until("!document.getElementById('panel').innerText.includes('Being computed')")
    assert page.faults == []


def test_what_would_help_says_why_it_is_not_known(page: Page) -> None:
    page.run("weft.timelines[0].request.schedule = 'nothing'")
    page.run("document.getElementById('tab-helps').click()")
    page.until("document.getElementById('panel').innerText.includes('Not computed: ')")
    assert "no schedule named" in words(page, "#panel")


def test_memory_is_relieved_live(page: Page) -> None:
    page.run(
        """(() => {
          const select = document.querySelector('[aria-label="Memory"]');
          select.value = "--recompute all";
          select.dispatchEvent(new Event("change"));
        })()"""
    )
    page.until("weft.timelines[0].name === '1f1b --recompute all'")
    assert page.run("weft.timelines[0].makespan") == 44


def type_number(page: Page, label: str, value: str) -> None:
    """Into the field beside a slider, and leave it."""
    page.run(
        f"""(() => {{
          const number = document.querySelector('[aria-label="{label}, as a number"]');
          number.value = {json.dumps(value)};
          for (const kind of ["input", "change"]) number.dispatchEvent(new Event(kind));
        }})()"""
    )


def test_a_number_may_lie_between_the_steps_of_its_slider(page: Page) -> None:
    type_number(page, "Forward", "0.333")
    page.until(
        "weft.asked.forward === 0.333 && Math.abs(weft.timelines[0].makespan - 25.663) < 1e-9"
    )


@pytest.mark.parametrize("value", ["0", "2.5", ""])
def test_a_number_that_cannot_be_is_marked(page: Page, value: str) -> None:
    type_number(page, "Devices", value)
    assert page.run("document.querySelectorAll('input:invalid').length") == 1
    assert page.run("weft.asked.devices") == 4
    type_number(page, "Devices", "6")
    page.until("weft.timelines[0].devices === 6")
    assert page.run("document.querySelectorAll('input:invalid').length") == 0


@pytest.mark.parametrize(("text", "reason"), [("", "it is empty"), ("[]", "line 1: a program")])
def test_a_bad_file_is_named_once(page: Page, text: str, reason: str) -> None:
    drop(page, "mine.txt", text)
    assert reason in words(page, "#message")
    assert words(page, "#message").count("mine.txt") == 1


def test_a_long_name_of_a_file_stays_on_the_page(browser: Browser, live: Server) -> None:
    page = browser.page(width=400)
    page.open(live.address)
    drop(page, f"{'x' * 200}.txt", to_text(one_f_one_b(devices=2, microbatches=2)))
    page.until("weft.timelines.length === 2")
    assert page.run("document.documentElement.scrollWidth") == 400

"""The planner's questions in a real browser: own files, what does not fit, the frontier."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Thread

import pytest

from tests.web.browser import Browser, Page
from tests.web.driving import drop, opened, pick, press_button, slide, words
from tests.web.test_planning import CONFIG, LLAMA, PROGRAM
from weft.cost import DEVICES, Cluster, derive, model_named
from weft.notation import to_json
from weft.plan.frontier import frontier
from weft.plan.question import Choices, Question
from weft.simulate import simulate
from weft.web.descriptions import described
from weft.web.frontier import frontier_page
from weft.web.server import Server

pytestmark = pytest.mark.timeout(300)  # the first test may have to install the browser


def number(page: Page, label: str, value: float) -> None:
    slide(page, f"{label}, as a number", value)


def test_an_own_model_and_cluster_and_a_link_to_them(page: Page, browser: Browser) -> None:
    drop(page, "config.json", json.dumps(CONFIG))
    assert "model llama-8b: 8.03 B parameters" in words(page, "#message")
    expected = simulate(PROGRAM, derive(PROGRAM, LLAMA, DEVICES["a100"]))
    page.until(f"Math.abs(weft.timelines[0].makespan - {expected.makespan}) < 1e-12")
    page.run("document.getElementById('message').hidden = true")
    drop(page, "lab.json", to_json(Cluster(devices=16, device=DEVICES["h100"])))
    page.until(
        "weft.timelines[0].figures.some((one) => one.name === 'devices in all' && one.value === 16)"
    )
    before = page.run("weft.timelines[0].makespan")
    page.until("location.hash.includes('lab')")
    again = browser.page()
    again.open(page.run("location.href"))
    assert again.run("weft.timelines[0].makespan") == before
    chosen = "[...document.querySelectorAll('[aria-label=Model], [aria-label=Device]')]"
    assert again.run(f"{chosen}.map((one) => one.value)") == ["llama-8b", "lab"]
    assert page.faults == again.faults == []


def test_a_cluster_that_the_server_is_given(browser: Browser) -> None:
    lab = described(Cluster(devices=16, device=DEVICES["h100"]), "lab.json", "")
    with Server(given=[lab]) as running:
        Thread(target=running.serve_forever, daemon=True).start()
        page = browser.page()
        page.open(running.address)
        page.until("weft.timelines[0]?.figures.some((one) => one.name === 'devices in all')")
        assert page.run("document.querySelector('[aria-label=Device]').value") == "lab"
        pick(page, "Costs", "units")
        page.until("!document.querySelector('[aria-label=Device]')")
        assert page.faults == []
        running.shutdown()


def test_what_does_not_fit_says_so_and_is_mended(page: Page) -> None:
    pick(page, "Costs", "model")
    pick(page, "Model", "gpt-28.3b")
    page.until("document.querySelector('.refusal')?.innerText.startsWith('1f1b does not fit.')")
    assert "GiB too much" in words(page, ".refusal")
    page.until("document.querySelector('.refusal ul button')")
    press_button(page, ".refusal button", "tensor parallelism of 2")
    page.until("!document.querySelector('.refusal') && weft.timelines.length")
    assert page.run("weft.timelines[0].request.tensor_parallel") == 2
    slide(page, "Devices of the cluster", 4)
    page.until("document.querySelector('.refusal')?.innerText.includes('the cluster has 4')")
    assert page.faults == []


def test_stages_of_the_reader_s_choice_are_computed_again(page: Page) -> None:
    pick(page, "Memory", "own")
    page.run(
        """(() => {
          const text = document.querySelector('[aria-label="Stages that are computed again"]');
          text.value = "0, 2";
          text.dispatchEvent(new Event("change"));
        })()"""
    )
    page.until("weft.timelines[0].name === '1f1b --recompute 0,2'")


def test_the_frontier_says_what_is_pointed_at(page: Page) -> None:
    page.run("document.getElementById('tab-plot').click()")
    page.until("weft.points.some((point) => point.name === 'zb-h1')")
    said = page.run(
        """(() => {
          const mark = document.querySelector('.plot g[aria-label^="zb-h1:"]');
          const tip = () => document.querySelector(".plottip");
          mark.dispatchEvent(new Event("pointerenter"));
          const found = tip().innerText.split("\\n");
          mark.dispatchEvent(new Event("pointerleave"));
          return [...found, String(tip().hidden)];
        })()"""
    )
    figures = ["27 a step (−18.2%)", "5 on the fullest device (=)"]
    assert said == ["zb-h1", *figures, "in brackets: against 1f1b", "true"]


def test_the_largest_shape_is_drawn(page: Page) -> None:
    number(page, "Devices", 64)
    number(page, "Microbatches", 512)
    page.until("weft.timelines[0].devices === 64 && weft.timelines[0].count === 65536")
    assert page.run("weft.timelines[0].makespan") == 3 * (512 + 63)
    assert page.faults == []


def test_a_synthesised_point_opens_its_timeline(page: Page) -> None:
    slide(page, "Devices", 2)
    slide(page, "Microbatches", 2)
    page.run("document.getElementById('tab-plot').click()")
    page.until("weft.points.some((point) => point.name === 'synthesised, 3')")
    page.until("weft.progress === '' && document.querySelectorAll('.plot rect').length === 2")
    page.run(
        """document.querySelector('.plot g[aria-label^="synthesised, 3:"]')
          .dispatchEvent(new Event("click"))"""
    )
    page.until("weft.timelines.some((one) => one.name === 'synthesised, 3')")
    lies = page.run("weft.points.find((point) => point.name === 'synthesised, 3').time")
    least = 0.5 + 6  # device 1 waits for half a forward, and has six units of work
    assert page.run("weft.timelines[1].makespan") == lies == least
    press_button(page, "#controls button", "Remove synthesised, 3")
    page.until("weft.timelines.length === 1")
    assert page.faults == []


def test_a_frontier_in_a_file_opens_the_timelines_of_its_points(
    browser: Browser, tmp_path: Path
) -> None:
    question = Question(
        model=model_named("gpt-cpu"),
        cluster=Cluster(devices=2, device=DEVICES["a100"]),
        batch=2048,
        choices=Choices(pipeline=2, tensor=1, microbatch_size=4, schedule=("1f1b", "zb-h1")),
    )
    found = frontier(question, budgets=2)
    (tmp_path / "frontier.html").write_text(frontier_page(found.points))
    page = opened(browser, tmp_path / "frontier.html")
    places = page.run("weft.points.map((point) => [point.kind, point.time, point.memory])")
    ranked = sorted(found.points, key=lambda point: point.seconds)
    assert places == [[one.kind, pytest.approx(one.seconds), one.bytes] for one in ranked]
    assert page.run("document.querySelectorAll('.plot g').length") == len(ranked)
    page.run("weft.hidden.add(weft.timelines[1].key); weft.emit('timelines')")
    page.run(
        "document.querySelector('.plot g[aria-label^=zb-h1]').dispatchEvent(new Event('click'))"
    )
    assert "zb-h1" in page.run("weft.shown().map((one) => one.name)")
    assert page.faults == []

"""The page in a real browser: loaded, zoomed, pointed at, driven by keys."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.web.browser import Browser, Page
from tests.web.driving import middle_of, opened, pixel, press_button, settled, words
from tests.web.pages import large
from weft.web import write_page

pytestmark = pytest.mark.timeout(300)  # the first test may have to install the browser


# loading


def test_it_loads_without_a_fault_and_asks_nobody(small: Page) -> None:
    assert small.faults == []
    assert {urlsplit(address).scheme for address in small.requests} <= {"file", "data"}
    assert "1f1b: 4 devices, 8 microbatches" in words(small, "#details")
    assert small.run("weft.timelines[0].count") == 64


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_picture_has_colours_of_its_scheme(browser: Browser, folder: Path, scheme: str) -> None:
    page = opened(browser, folder / "small.html", scheme=scheme)
    assert (sum(pixel(page, 2, 150)) > 600) == (scheme == "light")
    x, y = middle_of(page, 0)
    assert pixel(page, x - 8, y - 4) == [0x00, 0x72, 0xB2]  # a forward


@pytest.mark.parametrize("size", [(1920, 1080), (1280, 720), (700, 1000)])
def test_it_fits_the_window(browser: Browser, folder: Path, size: tuple[int, int]) -> None:
    page = opened(browser, folder / "two.html", width=size[0], height=size[1])
    assert page.run("document.documentElement.scrollWidth") <= size[0]
    assert page.faults == []


# zooming, pointing, keys


def test_zoom_and_fit(small: Page) -> None:
    whole = small.run("weft.view.to - weft.view.from")
    x, y = middle_of(small, 10)
    held = small.run("weft.view.from")
    small.mouse("mouseWheel", x, y, deltaX=0, deltaY=-300)
    settled(small)
    assert small.run("weft.view.to - weft.view.from") < whole
    assert small.run("weft.view.from") >= held
    assert abs(middle_of(small, 10)[0] - x) < 2  # what lies under the pointer stays there
    press_button(small, "#toolbar button", "Fit")
    assert small.run("weft.view.to - weft.view.from") == pytest.approx(whole)


def test_dragging_moves_the_view(small: Page) -> None:
    small.run("weft.zoom(0.25)")
    before = small.run("weft.view.from")
    x, y = 700, 300
    small.move(x, y)
    small.mouse("mousePressed", x, y, button="left", clickCount=1)
    small.mouse("mouseMoved", x - 120, y, button="left", buttons=1)
    small.mouse("mouseReleased", x - 120, y, button="left", clickCount=1)
    assert small.run("weft.view.from") > before


def test_hover_describes_an_action(small: Page) -> None:
    small.move(*middle_of(small, 4))  # 0B0, the first backward of device 0
    text = words(small, "#tip")
    assert "0B0: backward" in text
    assert "10 to 12, takes 2" in text
    assert "started after 1B0 on device 1" in text
    small.move(*middle_of(small, 0))
    assert "waits for this: 1F0 on device 1 and 1 more" in words(small, "#tip")


def test_hover_describes_a_gap_and_of_memory(small: Page) -> None:
    small.move(middle_of(small, 4)[0] - 120, middle_of(small, 4)[1])
    assert "idle for 6: order" in words(small, "#tip")
    small.move(middle_of(small, 4)[0], middle_of(small, 4)[1] + 40)
    assert "memory of device 0: 5" in words(small, "#tip")


def test_a_click_on_a_gap_walks_the_chain_of_waits(small: Page) -> None:
    small.click(middle_of(small, 4)[0] - 120, middle_of(small, 4)[1])
    text = words(small, "#details")
    assert "Device 0 is idle: order" in text
    chain = [line.split()[0] for line in text.splitlines() if " on device " in line][1:]
    assert chain[:4] == ["1B0", "2B0", "3B0", "3F0"]
    assert chain[-1] == "0F0"


def test_a_click_selects_an_action(small: Page) -> None:
    small.click(*middle_of(small, 4))
    text = words(small, "#details")
    assert "slack\nnone: critical" in text
    assert "10% shorter brings" in text
    assert "Waits for this" not in text  # nothing reads the gradient of the first stage


def test_keys_go_from_action_to_action(small: Page) -> None:
    small.run("document.getElementById('overlay').focus()")
    for key, action in [("ArrowRight", 0), ("ArrowRight", 1), ("ArrowDown", 16)]:
        small.press(key)
        assert small.run("weft.selection.action") == action
    said = small.run("document.getElementById('status').textContent")
    assert said.startswith("1F0, forward, device 1")
    small.press("w")
    assert small.run("weft.selection.action") == 0
    small.press("Escape")
    assert small.run("weft.selection") is None
    small.press("m")
    assert small.run("weft.options.memory") is False


def test_keys_go_from_gap_to_gap(small: Page) -> None:
    small.run("document.getElementById('overlay').focus()")
    small.press("g")
    assert small.run("weft.selection.gap") == 0
    assert "The chain of waits" in words(small, "#details")
    small.press("g")
    assert small.run("weft.selection.gap") == 1
    small.press("G")
    assert small.run("weft.selection.gap") == 0
    small.run("weft.select({ timeline: weft.timelines[0], action: 16 })")  # 1F0, after a warm-up
    small.press("g")
    said = small.run("document.getElementById('status').textContent")
    assert said == "device 1 idle for 4, order"


def test_search(small: Page) -> None:
    small.run("document.getElementById('search').focus()")
    for letter in "2F7":
        small.press(letter, letter)
    small.press("Enter", "\r")
    assert "2F7: forward" in words(small, "#details")
    small.run("document.getElementById('search').value = '9F99'")
    small.press("Enter", "\r")
    assert "No action is called 9F99" in words(small, "#message")


def test_play_runs_through_the_step(small: Page) -> None:
    small.run("weft.player.seconds = 0.4; weft.player.play()")
    small.until("weft.cursor > 0")
    small.until("weft.cursor === null")
    assert small.run("weft.player.isPlaying") is False


# the largest size


def test_a_quarter_of_a_million_actions(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "large.html"
    write_page(path, [large(64, 512, 4)])
    page = opened(browser, path)
    assert page.run("weft.timelines[0].count") == 262_144
    assert page.run("weft.layout.rows.length") == 65
    page.run("weft.zoom(0.001)")
    settled(page)
    page.move(600, 200)
    assert "interleaved" in words(page, "#details")
    page.run("weft.fit()")
    settled(page)
    assert page.faults == []

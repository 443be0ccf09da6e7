"""Pages in the browser: opened, asked what they say, and pressed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.web.browser import Browser, Page

AXIS = 30  # of the page's layout


def opened(browser: Browser, path: Path, **looks: Any) -> Page:
    page = browser.page(**looks)
    page.open(path.as_uri())
    return page


def settled(page: Page) -> None:
    """Until the picture follows what was asked of it."""
    page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def middle_of(page: Page, action: int, timeline: int = 0) -> tuple[float, float]:
    """Where an action lies on the screen."""
    x, y = page.run(
        f"""import("weft/paint.js").then(({{ boxOf }}) => {{
          const timeline = weft.timelines[{timeline}];
          const box = boxOf(weft, weft.layout, timeline, {action}, weft.viewport.width);
          const place = document.getElementById("overlay").getBoundingClientRect();
          return [place.left + (box.left + box.right) / 2,
                  place.top + {AXIS} - weft.view.scroll + box.y + box.height / 4];
        }})"""
    )
    return x, y


def words(page: Page, selector: str) -> str:
    found: str = page.run(f"document.querySelector({json.dumps(selector)}).innerText")
    return found


def press_button(page: Page, selector: str, beginning: str) -> None:
    """Click the one whose words begin so."""
    page.run(
        f"""[...document.querySelectorAll({json.dumps(selector)})]
          .find((one) => one.innerText.startsWith({json.dumps(beginning)})).click()"""
    )


def pixel(page: Page, x: float, y: float) -> list[int]:
    """Red, green and blue of a point of the picture."""
    found: list[int] = page.run(
        f"""(() => {{
          const canvas = document.getElementById("base");
          const place = canvas.getBoundingClientRect();
          const at = [Math.round({x} - place.left), Math.round({y} - place.top)];
          return [...canvas.getContext("2d").getImageData(...at, 1, 1).data];
        }})()"""
    )
    return found[:3]


def drop(page: Page, name: str, text: str) -> None:
    page.run(
        f"""(() => {{
          const given = new DataTransfer();
          given.items.add(new File([{json.dumps(text)}], {json.dumps(name)}));
          dispatchEvent(new DragEvent("drop", {{ dataTransfer: given, cancelable: true }}));
        }})()"""
    )
    page.until("!document.getElementById('message').hidden")


def slide(page: Page, label: str, value: float) -> None:
    """Move the slider whose name begins so."""
    page.run(
        f"""(() => {{
          const slider = document.querySelector('[aria-label^={json.dumps(label)}]');
          slider.value = {value};
          slider.dispatchEvent(new Event("input"));
        }})()"""
    )


def pick(page: Page, label: str, value: str) -> None:
    """Choose one of several."""
    page.run(
        f"""(() => {{
          const select = document.querySelector('[aria-label={json.dumps(label)}]');
          select.value = {json.dumps(value)};
          select.dispatchEvent(new Event("change"));
        }})()"""
    )

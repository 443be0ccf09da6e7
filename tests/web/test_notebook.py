"""The page in a notebook."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

import weft
from tests.web.browser import Browser
from tests.web.pages import OTHER, SMALL
from weft.errors import InputError
from weft.web import page


def test_the_frame_holds_the_page() -> None:
    frame = weft.explore(SMALL, height=300)._repr_html_()
    found = re.search(r'srcdoc="([^"]*)"', frame)
    assert found
    assert html.unescape(found[1]) == page([SMALL])
    assert "height: 300px" in frame


def test_nothing_is_nothing_to_explore() -> None:
    with pytest.raises(InputError, match="no timeline"):
        weft.explore()


@pytest.mark.timeout(300)
def test_the_frame_works_inside_another_page(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html>{weft.explore(SMALL, OTHER)._repr_html_()}")
    tab = browser.page()
    tab.open(path.as_uri(), ready="frames[0].document.documentElement.dataset.ready")
    assert tab.run("frames[0].weft.shown().map((one) => one.name)") == ["1f1b", "zbv"]
    tab.run("frames[0].weft.show(3, 9)")
    tab.run("new Promise((done) => setTimeout(done, 300))")  # when the address would be written
    assert tab.faults == []

"""Files in and out of the page, in a real browser."""

from __future__ import annotations

import json

import pytest

from tests.web.browser import Page
from tests.web.driving import drop, press_button, words
from tests.web.pages import OTHER, SMALL
from weft.notation import to_json

pytestmark = pytest.mark.timeout(300)  # the first test may have to install the browser


def exported(page: Page, entry: str) -> str:
    """The text of a file that the page hands out."""
    page.run(
        """globalThis.handed = new Promise((done) => {
          const make = URL.createObjectURL;
          URL.createObjectURL = (blob) => { blob.text().then(done); return make.call(URL, blob); };
        }); undefined"""
    )
    page.run("document.querySelector('.menu > button').click()")
    press_button(page, ".menu > div button", entry)
    text: str = page.run("globalThis.handed")
    return text


def test_export_svg(small: Page) -> None:
    text = exported(small, "Picture, SVG")
    assert text.startswith("<svg xmlns=")
    assert ">F0</text>" in text
    assert "device 3" in text
    parsed = f"new DOMParser().parseFromString({json.dumps(text)}, 'image/svg+xml')"
    assert small.run(f"{parsed}.querySelector('parsererror') === null")


def test_export_png(small: Page) -> None:
    assert "PNG" in exported(small, "Picture, PNG")[:8]


def test_export_csv_has_what_is_seen(small: Page) -> None:
    lines = exported(small, "Actions, CSV").splitlines()
    assert len(lines) == 65
    assert lines[1].startswith("1f1b,0,compute,0F0,F,0,1,0,0,")
    small.run("weft.show(0, 2)")
    assert len(exported(small, "Actions, CSV").splitlines()) < 10


def test_export_perfetto(small: Page) -> None:
    events = json.loads(exported(small, "Trace for Perfetto"))["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 64
    assert sum(event["ph"] == "s" for event in events) == SMALL.program.messages
    assert any(event["ph"] == "C" for event in events)


def test_a_timeline_dropped_on_a_file_is_shown(small: Page) -> None:
    drop(small, "zbv.json", to_json(OTHER))
    assert "Added zbv" in words(small, "#message")
    assert small.run("weft.shown().length") == 2
    assert small.faults == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no JSON at all", "`weft draw x.json -o page.html` makes a page"),
        ("{}", "it is no timeline"),
        ("null", "it is no timeline"),
        ('{"format": "weft.timeline"}', "lacks its program"),
        ('{"format": "weft.timeline", "program": {"lanes": [{"actions": 3}], "columns": {}},'
         ' "start": [], "end": []}', "3 actions, but 0 starts"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_a_reason(small: Page, text: str, reason: str) -> None:
    drop(small, "x.json", text)
    assert reason in words(small, "#message")
    assert small.run("weft.timelines.length") == 1
    assert small.faults == []

"""Files in and out of the page, in a real browser."""

from __future__ import annotations

import json

import pytest

from tests.web.browser import Page
from tests.web.driving import drop, press_button, words
from tests.web.pages import OTHER, SMALL, measured
from weft.notation import to_json
from weft.simulate import simulate
from weft.web import page as html_of

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


def test_a_dropped_timeline_says_what_it_does_not_know(small: Page) -> None:
    drop(small, "zbv.json", to_json(OTHER))
    small.run("weft.select({ timeline: weft.timelines[1], action: 4 })")
    answer = words(small, "#details")
    assert "dropped on the page of `weft serve`, it is worked out" in answer
    assert "slack" not in answer
    idle = small.run("weft.timelines[1].idle.sums.map((of) => of.work + (of.unexplained ?? 0))")
    assert idle == pytest.approx([OTHER.makespan] * 4)


def test_a_run_dropped_on_its_prediction_lies_under_it(small: Page) -> None:
    drop(small, "run.json", to_json(measured(SMALL)))
    small.until("weft.layout.rows.length > 12")
    names = small.run(
        "weft.layout.rows.filter((row) => row.type === 'actions').map((row) => row.name)"
    )
    assert names == ["1f1b", "measured"] * 4
    small.run("weft.select({ timeline: weft.timelines[1], action: 4 })")
    assert "takes, 1f1b\n2 s (+10.0% here)" in words(small, "#details")
    assert "1B0 on device 1" in words(small, "#details")  # what it reads is the program's


def test_a_page_dropped_on_another_brings_all_it_knows(small: Page) -> None:
    drop(small, "zbv.html", html_of([OTHER]))
    assert "Added zbv" in words(small, "#message")
    small.run("weft.select({ timeline: weft.timelines[1], action: 4 })")
    assert "slack" in words(small, "#details")
    assert small.faults == []


def test_nothing_of_a_dropped_file_is_run(small: Page) -> None:
    evil = "<img src=x onerror='globalThis.hacked=1'></script><script>globalThis.hacked=1</script>"
    for name, text in [
        (f"{evil}.json", to_json(simulate(OTHER.program.renamed(evil)))),
        ("x.html", html_of([simulate(OTHER.program.renamed(evil))]) + evil),
    ]:
        drop(small, name, text)
        small.run("document.getElementById('message').hidden = true")
    for tab in ("comparison", "actions", "helps", "idle"):
        small.run(f"weft.openTab('{tab}')")
    assert evil[:80] in words(small, "#timelines")
    assert "&lt;img src=x" in exported(small, "Picture, SVG")
    assert small.run("globalThis.hacked ?? 0") == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no JSON at all", "`weft draw x.json -o page.html` makes a page"),
        ("{}", "it is no timeline"),
        ("null", "it is no timeline"),
        ('{"format": "weft.timeline"}', "lacks its program"),
        ('{"format": "weft.timeline", "program": {"lanes": [{"actions": 3}], "columns": {}},'
         ' "start": [], "end": []}', "3 actions, but 0 starts"),
        ('{"format": "weft.timeline", "program": {"lanes": [{"device": 1000000000, "actions": 0}],'
         ' "columns": {}}, "start": [], "end": []}', "a lane has no device"),
        ('{"format": "weft.timeline", "program": {"lanes": [{"device": 0, "actions": 1}],'
         ' "columns": {"kind": "Q"}}, "start": [0], "end": [1]}', "no kind of action is called Q"),
        ("<!doctype html><p>", "it is no page of Weft"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_a_reason(small: Page, text: str, reason: str) -> None:
    drop(small, "x.json", text)
    assert reason in words(small, "#message")
    assert small.run("weft.timelines.length") == 1
    assert small.faults == []

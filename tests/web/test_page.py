"""Pages: what is in the file, and that nothing else is needed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.cli.running import refused, weft
from tests.web.pages import OTHER, SMALL, content, measured, unpacked, with_latency
from weft.ir.kinds import Kind
from weft.lower import wires
from weft.schedules import REGISTRY, one_f_one_b, pipedream
from weft.simulate import simulate
from weft.web import page, write_page
from weft.web.columns import exact, rounded
from weft.web.view import view


def test_the_columns_are_those_of_the_timeline() -> None:
    columns = content(page([SMALL]))["timelines"][0]["columns"]
    assert np.array_equal(unpacked(columns["start"]), SMALL.start)
    assert np.array_equal(unpacked(columns["end"]), SMALL.end)
    for name in ("stage", "kind", "microbatch"):
        assert np.array_equal(unpacked(columns[name]), getattr(SMALL.program.actions, name))
    assert np.array_equal(unpacked(columns["decider"]), SMALL.deciders)
    assert np.allclose(unpacked(columns["slack"]), SMALL.critical_path.slack)


@pytest.mark.parametrize("schedule", list(REGISTRY), ids=lambda schedule: schedule.name)
def test_every_schedule_has_a_page(schedule: object) -> None:
    program = schedule(devices=4, microbatches=8)  # type: ignore[operator]
    timeline = simulate(program.unrolled() if program.period else program)
    (shown,) = content(page([timeline]))["timelines"]
    assert shown["makespan"] == timeline.makespan
    assert len(unpacked(shown["columns"]["start"])) == len(timeline.program)


def test_idle_stretches_and_their_sums() -> None:
    idle = view(SMALL)["idle"]
    assert isinstance(idle, dict)
    lengths = unpacked(idle["end"]) - unpacked(idle["start"])
    assert lengths.sum() == pytest.approx(sum(stretch.seconds for stretch in SMALL.idle))
    for device, sums in enumerate(idle["sums"]):
        assert sum(sums.values()) == pytest.approx(SMALL.makespan)
        assert sums["work"] == SMALL.device_work[device]


def test_memory_stacks_to_the_total() -> None:
    memory = view(SMALL)["memory"]
    assert isinstance(memory, dict)
    for device, curves in enumerate(memory["devices"]):
        total = np.sum([unpacked(level) for level in curves["levels"].values()], axis=0)
        assert np.max(total) == SMALL.memory.peaks[device]
        assert len(total) == len(unpacked(curves["times"]))


def test_a_send_is_shown_until_what_it_sent_has_arrived() -> None:
    timeline = with_latency(wires(one_f_one_b(devices=2, microbatches=2)))
    columns = view(timeline)["columns"]
    assert isinstance(columns, dict)
    is_send = timeline.program.actions.kind == Kind.SEND_ACTIVATION
    length = unpacked(columns["end"]) - unpacked(columns["start"])
    assert (length[is_send] == 0.5).all()


def test_versions_are_shown_where_there_are_several() -> None:
    asynchronous = simulate(pipedream(devices=2, microbatches=4).unrolled())
    assert view(asynchronous)["has_versions"] is True
    assert view(SMALL)["has_versions"] is False


def test_what_was_measured_has_no_gains() -> None:
    columns = view(measured(SMALL))["columns"]
    assert isinstance(columns, dict)
    assert not unpacked(columns["gain"]).any()


def test_predicted_and_measured_are_of_one_program() -> None:
    ours, theirs = content(page([SMALL, measured(SMALL)], ["predicted", "measured"]))["timelines"]
    assert ours["digest"] == theirs["digest"]
    assert (ours["name"], theirs["name"]) == ("predicted", "measured")


def test_a_page_asks_nobody() -> None:
    text = page([SMALL, OTHER])
    assert "connect-src 'none'" in text
    outside = re.findall(r"""(?:src|href)=["'](?!#|data:)[^"']*""", text)
    assert not outside
    assert "http://www.w3.org/2000/svg" not in re.sub(r"data:text/javascript[^\"]*", "", text)


def test_names_cannot_break_out_of_the_page() -> None:
    evil = SMALL.program.renamed("</script><script>alert(1)</script>")
    text = page([simulate(evil)])
    assert "<script>alert" not in text
    assert content(text)["timelines"][0]["name"] == evil.name


def test_columns_take_few_bytes() -> None:
    assert exact(np.array([0, 200]))["type"] == "u1"
    assert exact(np.array([-1, 200]))["type"] == "i2"
    assert exact(np.array([0, 1 << 20]))["type"] == "i4"
    assert exact(np.full(9, -1)) == {"all": -1, "count": 9, "type": "i1"}
    assert rounded(np.array([0.5, 1.5]))["type"] == "f4"
    assert len(unpacked(exact(np.empty(0, np.int64)))) == 0


def test_write_page(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    write_page(path, [SMALL], ["predicted"])
    assert content(path.read_text())["timelines"][0]["title"].startswith("predicted: 4 devices")


# the command line


def test_draw_writes_a_page(tmp_path: Path) -> None:
    path = tmp_path / "x.html"
    assert (
        weft("draw", "1f1b", "-d", "2", "-n", "4", "-o", str(path), "--palette", "seeds").stdout
        == ""
    )
    shown = content(path.read_text())
    assert shown["timelines"][0]["devices"] == 2
    assert shown["options"] == {"palette": "seeds"}


def test_a_page_shows_all(tmp_path: Path) -> None:
    refused(weft("draw", "1f1b", "-o", str(tmp_path / "x.html"), "--only", "1"), "leave out --only")


def test_compare_writes_a_page_of_all(tmp_path: Path) -> None:
    path = tmp_path / "x.html"
    result = weft("compare", "1f1b", "zb-h1", "-d", "2", "-n", "4", "-o", str(path))
    assert result.exit_code == 0, result.stderr
    shown = content(path.read_text())
    names = [timeline["name"] for timeline in shown["timelines"]]
    assert sorted(names) == ["1f1b", "zb-h1"]
    assert [shown["timelines"][point["timeline"]]["name"] for point in shown["points"]] == names


def test_compare_writes_nothing_but_pages(tmp_path: Path) -> None:
    refused(weft("compare", "-o", str(tmp_path / "x.svg")), "its name ends in .html")

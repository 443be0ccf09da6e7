"""The frontier, its pictures, and orders that a search synthesises."""

from __future__ import annotations

import re
from itertools import combinations, pairwise

import pytest

from tests.plan.cases import HEAVY, question
from weft.draw.scatter import Dot, Scatter
from weft.draw.svg.elements import width_of
from weft.draw.svg.scatter import SIZE, scatter_to_svg
from weft.draw.terminal_scatter import scatter_lines
from weft.plan.frontier import frontier
from weft.plan.question import Choices
from weft.plan.search import search
from weft.simulate import simulate
from weft.verify import check

DEEP = Choices(pipeline=4, microbatch_size=1, max_stages_per_device=2)


def test_every_schedule_is_a_point_and_synthesis_a_line_below() -> None:
    asked = question(model=HEAVY, choices=DEEP)
    found = frontier(asked, budgets=4)
    assert {"1f1b", "gpipe", "zbv x 2", "v-min x 2"} <= {point.title for point in found.schedules}
    line = found.line
    assert [point.bytes for point in line] == sorted(point.bytes for point in line)
    assert [point.seconds for point in line] == sorted((p.seconds for p in line), reverse=True)
    bytes_of = {point.title: point.bytes for point in found.schedules}
    assert line[0].bytes < bytes_of["1f1b"]
    for point in (line[0], line[-1], found.schedules[0]):
        timeline, _ = point.request.timed()
        check(timeline.program)
        assert simulate(timeline.program, timeline.cost).makespan == pytest.approx(point.seconds)
        assert max(timeline.memory.peaks) == pytest.approx(point.bytes)


def test_a_search_proposes_an_order_that_no_schedule_has() -> None:
    """Where the head is heavy, so that orders for even stages wait for it."""
    asked = question(model=HEAVY, choices=DEEP)
    found = search(asked)
    made = [one for one in found.proposals if one.trial.candidate.schedule.name == "synthesised"]
    assert made
    others = [one for one in found.proposals if one not in made]
    assert made[0].trial.seconds < min(one.trial.seconds for one in others)
    assert made[0].plan.source.startswith("synthesised, ")
    assert made[0].plan.prediction().seconds == pytest.approx(made[0].predicted.seconds)


DOTS = (
    Dot(1.0, 3e9, "quick"),
    Dot(1.2, 2e9, "lean"),
    Dot(1.3, 3e9, "neither"),
    Dot(9.0, 1e9, "far too slow"),
    Dot(1.1, 2.2e9, "made", is_joined=True),
    Dot(1.4, 1.8e9, "made, leaner", is_joined=True),
)


def test_a_scatter_names_the_best_and_leaves_out_the_slowest() -> None:
    scatter = Scatter("title", DOTS, limit=3.2e9)
    assert [dot.name for dot in scatter.schedules.best] == ["lean", "quick"]
    drawn = scatter_to_svg(scatter)
    for name in ("quick", "lean", "neither", "all that a device has", "1 far slower"):
        assert name in drawn
    assert "far too slow" not in drawn
    lines = [*scatter_lines(scatter)]
    assert "  a  lean: 1.2 s, 1.863 GiB" in lines
    assert "  b  quick: 1 s, 2.794 GiB" in lines
    assert sum(line.count("*") for line in lines[:-3]) == 2


CROWD = tuple(
    Dot(1.0 + 0.5 / (step + 1) + shift, 1e9 * (1 + 0.04 * step + shift), f"{name} (lean) x {step}")
    for step in range(8)
    for name, shift in (("interleaved-1f1b", 0.01), ("kimi-k2", 0.03))
)
CURVE = tuple(
    Dot(1.0 + 0.5 / (step + 1), 1e9 * (1 + 0.04 * step), "made", is_joined=True)
    for step in range(8)
)


def test_names_lie_neither_across_each_other_nor_across_the_line() -> None:
    scatter = Scatter("title", CROWD + CURVE, limit=1.4e9)
    drawn = scatter_to_svg(scatter)
    best = [dot.name for dot in scatter.schedules.best]
    words = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"(?: text-anchor="(\w+)")?>(.*?)<', drawn)
    boxes = {
        name: _extent(float(x), float(y), anchor, name)
        for x, y, anchor, name in words
        if name in {*(dot.name for dot in CROWD), "all that a device has"}
    }
    assert {*best, "all that a device has"} <= {*boxes}
    for one, other in combinations(boxes.values(), 2):
        assert not _meet(one, other)
    line = re.findall(r'<path d="M([^"]*)" stroke="#d55e00"', drawn)[0]
    corners = [tuple(map(float, corner.split())) for corner in line.split("L")]
    for (x, y), (to_x, to_y) in pairwise(corners):
        for part in range(101):
            at = x + (to_x - x) * part / 100, y + (to_y - y) * part / 100
            assert not any(_meet((*at, *at), box) for box in boxes.values())


def _extent(x: float, y: float, anchor: str, name: str) -> tuple[float, ...]:
    width = width_of(name, SIZE)
    left = x - {"end": width, "middle": width / 2}.get(anchor, 0.0)
    return left, y - SIZE + 3, left + width, y


def _meet(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    is_beside = one[0] >= other[2] or other[0] >= one[2]
    return not (is_beside or one[1] >= other[3] or other[1] >= one[3])


def test_what_holds_far_more_than_the_rest_is_at_the_edge() -> None:
    """Else one schedule that keeps all microbatches would press the others together."""
    scatter = Scatter("title", (*DOTS, Dot(1.05, 9e9, "hoarding")))
    assert [dot.name for dot in scatter.beyond] == ["hoarding"]
    assert max(dot.bytes for dot in scatter.best) < scatter.edge < 9e9
    assert "hoarding, 8.382 GiB" in scatter_to_svg(scatter)
    lines = [*scatter_lines(scatter)]
    assert next(line for line in lines if ">" in line).endswith(">")
    assert ">  more memory than that" in lines[-2]
    assert not Scatter("title", DOTS).beyond

"""Pictures in SVG: what they show, that labels fit, and that sizes are kept."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from weft.cost import Share
from weft.draw import Look, View, Window, to_png, to_svg
from weft.draw.bands import streams
from weft.draw.look import DARK, LIGHT
from weft.draw.marks import Mark
from weft.draw.palette import SAFE, SEEDS, shade
from weft.draw.png import BOLD
from weft.draw.size import Size
from weft.draw.svg.boxes import boxes
from weft.draw.svg.elements import width_of
from weft.draw.svg.frame import Wanted, frames
from weft.draw.view import WHOLE
from weft.errors import InputError
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.lower import updates, wires
from weft.schedules import REGISTRY, dualpipe, kimi_k2, one_f_one_b, pipedream
from weft.simulate import simulate
from weft.timeline import Timeline

SVG = "{http://www.w3.org/2000/svg}"


def timeline(name: str = "1f1b", devices: int = 4, microbatches: int = 8) -> Timeline:
    return simulate(REGISTRY[name](devices=devices, microbatches=microbatches))


def parsed(drawn: Timeline, **options: object) -> ElementTree.Element:
    return ElementTree.fromstring(to_svg(drawn, **options))  # type: ignore[arg-type]


def words(picture: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in picture.iter(f"{SVG}text")]


def fills(picture: ElementTree.Element) -> set[str]:
    return {group.get("fill", "") for group in picture.iter(f"{SVG}g")}


# what is shown


def test_title_figures_axis_and_legend_are_text() -> None:
    reported = words(parsed(timeline()))
    assert reported[:2] == [
        "1f1b: 4 devices, 8 microbatches",
        "time 33 · bubble wall 27.3% · bubble span 27.3% · peak 4 in flight",
    ]
    for word in ("device", "time", "0", "30", "forward", "backward", "idle"):
        assert word in reported


def test_every_action_has_its_box_and_label() -> None:
    reported = words(parsed(timeline()))
    for kind in "FB":
        for microbatch in range(8):
            assert reported.count(f"{kind}{microbatch}") == 4


def test_a_box_starts_and_ends_with_its_action() -> None:
    drawn = timeline("1f1b", 2, 2)
    (paper,) = frames(drawn, WHOLE, Look(), 1000, Wanted(0, 0))
    first, *_, last = boxes(drawn, WHOLE, paper, paper.rows[0])
    assert first.mark == Mark(Kind.F, 0)
    assert first.x == paper.x(0) == paper.left
    assert last.mark == Mark(Kind.B, 1)
    assert last.x == paper.x(7)
    assert last.x + last.width == pytest.approx(paper.right - 1)  # and a seam


def test_times_in_seconds_have_a_unit() -> None:
    reported = words(parsed(replace(timeline(), is_measured=True)))
    assert "time (s)" in reported


def test_colours_are_those_of_the_palette() -> None:
    assert shade(Mark(Kind.F), SAFE).code in fills(parsed(timeline()))
    seen = fills(parsed(timeline(), view=View(palette=SEEDS)))
    assert shade(Mark(Kind.B), SEEDS).code in seen
    assert shade(Mark(Kind.B), SAFE).code not in seen


def test_weight_gradients_are_hatched_so_that_they_differ_in_print() -> None:
    picture = parsed(timeline("zbv"))
    patterns = {pattern.get("id") for pattern in picture.iter(f"{SVG}pattern")}
    assert {f"url(#{name})" for name in patterns} == {
        fill for fill in fills(picture) if fill.startswith("url")
    }
    assert len(patterns) == 2  # one for each of a device's stages


def test_versions_stand_below_the_line() -> None:
    picture = parsed(simulate(pipedream(devices=3, microbatches=1, updates=4).unrolled()))
    below = {
        text.text: "".join(span.itertext()) for text in picture.iter(f"{SVG}text") for span in text
    }
    assert below["F3"] in ("1", "2", "3")
    assert "update" in words(picture)


def test_two_actions_in_one_slot_stand_above_each_other() -> None:
    drawn = simulate(dualpipe(devices=4, microbatches=8))
    (paper,) = frames(drawn, WHOLE, Look(), 1000, Wanted(0, 0))
    row = paper.rows[0]
    marked = boxes(drawn, WHOLE, paper, row)
    upper, lower = (box for box in marked if box.height < row.height and box.x == marked[7].x)
    assert (upper.mark.kind, lower.mark.kind) == (Kind.F, Kind.B)
    assert lower.y == upper.y + upper.height
    assert "in one slot" in words(parsed(drawn))


def test_streams_have_three_rows_and_their_kinds() -> None:
    program = kimi_k2(devices=2, microbatches=4, stages_per_device=2)
    drawn = simulate(wires(program))
    reported = words(parsed(drawn, view=View(bands_of=streams)))
    assert "0 compute" in reported
    assert "1 comm" in reported
    assert "send to another device" in reported


def test_messages_of_a_channel_that_are_under_way_at_once_do_not_hide_each_other() -> None:
    """A box goes from the launch of a send to its arrival, or to where the next one begins."""
    program = wires(REGISTRY["gpipe"](devices=2, microbatches=4))
    drawn = simulate(program, Share(latency=2.5).cost(program))
    view = View(bands_of=streams)
    (paper,) = frames(drawn, view, Look(), 1000, Wanted(0, 0))
    for row in paper.rows:
        found = sorted(boxes(drawn, view, paper, row), key=lambda box: (box.y, box.x))
        for one, other in pairwise(found):
            assert one.y != other.y or one.x + one.width <= other.x + 1e-6
    assert len(found) == 4, "the gradients"


def test_only_some_devices_and_some_time() -> None:
    picture = parsed(timeline(), view=View(only=(3,), window=Window(3, 9), count_from=1))
    reported = words(picture)
    assert {"F1", "B1", "F2", "B2"} <= set(reported)
    assert not {"F0", "B0", "F8", "B8"} & set(reported)


def test_a_window_outside_and_an_unknown_device_are_refused() -> None:
    with pytest.raises(InputError, match="nothing happens from 40 to 50; the timeline ends at 33"):
        to_svg(timeline(), view=View(window=Window(40, 50)))
    with pytest.raises(InputError, match="no device 4; they are numbered 0 to 3"):
        to_svg(timeline(), view=View(only=(4,)))


def test_memory_stands_under_each_device() -> None:
    reported = words(parsed(timeline("gpipe"), look=Look(has_memory=True)))
    assert reported.count("9") == 4  # eight in flight, and the weights
    assert "memory: activations" in reported


def test_the_most_that_a_device_holds_stands_at_its_height() -> None:
    """And not at the foot of its strip, where it reads as what weights take."""
    picture = parsed(timeline(), look=Look(has_memory=True))
    every = [one for one in picture.iter() if one.get("font-size") == "9"]
    numbers = {int(one.text or ""): float(one.get("y", 0)) for one in every if one.text != "device"}
    areas = [one.get("d", "") for one in picture.iter() if one.get("fill-opacity") == "0.5"][:4]
    for peak, area in zip((5, 4, 3, 2), areas, strict=True):
        top = min(float(y) for y in re.findall(r",([\d.]+)", area))
        assert top < numbers[peak] < top + 8


def test_themes_differ_in_paper() -> None:
    for theme in (LIGHT, DARK):
        paper = parsed(timeline(), look=Look(theme=theme)).find(f"{SVG}rect")
        assert paper is not None
        assert paper.get("fill") == theme.paper.code


def test_names_out_of_files_are_escaped() -> None:
    program: Program = one_f_one_b(devices=2, microbatches=2).renamed("<b>&\"'")
    assert words(parsed(simulate(program)))[0].startswith("<b>&\"'")


# sizes


@pytest.mark.parametrize("name", [schedule.name for schedule in REGISTRY])
def test_every_schedule_is_drawn_within_its_paper(name: str) -> None:
    for shape in ((4, 8), (8, 24)):
        for look in (Look(), Look(size=Size(width=400.0)), Look(size=Size(700.0, 420.0))):
            picture = parsed(timeline(name, *shape), look=look)
            width, height = (float(side) for side in picture.get("viewBox", "").split()[2:])
            assert look.size.width in (None, width)
            assert look.size.height in (None, height)
            for box in picture.iter(f"{SVG}rect"):
                right = float(box.get("x", 0)) + float(box.get("width", 0))
                bottom = float(box.get("y", 0)) + float(box.get("height", 0))
                assert right <= width + 0.1
                assert bottom <= height + 0.1


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "pipedream", "chimera", "zbv"])
@pytest.mark.parametrize("width", [300.0, 600.0, 1200.0])
def test_labels_fit_their_boxes(name: str, width: float) -> None:
    picture = parsed(timeline(name), look=Look(size=Size(width=width)))
    for group in picture.iter(f"{SVG}g"):
        size = group.get("font-size")
        if size is not None and group.get("text-anchor") == "middle":
            for label in group.iter(f"{SVG}text"):
                own = float(label.get("font-size", size))
                middle, wide = float(label.get("x", 0)), width_of(label.text or "", own)
                assert any(
                    float(box.get("x", 0)) <= middle - wide / 2
                    and middle + wide / 2 <= float(box.get("x", 0)) + float(box.get("width", 0))
                    for box in picture.iter(f"{SVG}rect")
                )


def test_a_size_on_paper_is_written_in_its_unit() -> None:
    picture = parsed(timeline(), look=Look(size=Size.of("90x60mm")))
    assert (picture.get("width"), picture.get("height")) == ("90mm", "60mm")


def test_too_small_a_size_says_what_is_needed() -> None:
    with pytest.raises(InputError, match="4 rows with title and legend need 113 x 125 pixels"):
        to_svg(timeline(), look=Look(size=Size(400.0, 60.0)))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("800", Size(800.0, None)),
        ("800x300", Size(800.0, 300.0)),
        ("800px", Size(800.0, None)),
        ("7x3in", Size(672.0, 288.0, "in")),
        ("7inx3in", Size(672.0, 288.0, "in")),
        ("25.4mm", Size(96.0, None, "mm")),
    ],
)
def test_sizes(text: str, size: Size) -> None:
    read = Size.of(text)
    assert (read.width, read.height, read.unit) == pytest.approx(
        (size.width, size.height, size.unit)
    ) or read == size


@pytest.mark.parametrize("text", ["", "large", "800x", "x300", "-5", "1e9", "0", "99999999", "8km"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        Size.of(text)


def test_actions_too_short_to_see_are_sampled() -> None:
    picture = to_svg(timeline("1f1b", 2, 4000))
    assert picture.count("<rect") < 2 * 2 * 1200


def test_what_takes_no_time_at_all_can_be_drawn() -> None:
    from weft.cost import Share

    program = updates(one_f_one_b(devices=2, microbatches=2))
    assert "idle" in to_svg(simulate(program, Share(0, 0, 0).cost(program)))


# pixels


def test_a_png_has_the_pixels_asked_for() -> None:
    pytest.importorskip("resvg_py")
    png = to_png(to_svg(timeline(), look=Look(size=Size(400.0, 200.0))), zoom=2.0)
    assert png.startswith(b"\x89PNG")
    assert [int.from_bytes(png[at : at + 4], "big") for at in (16, 20)] == [800, 400]


def test_text_in_a_png_needs_no_font_of_the_system() -> None:
    resvg = pytest.importorskip("resvg_py")
    svg = to_svg(timeline("zbv"))
    without = resvg.svg_to_bytes(svg_string=svg, dpi=96, skip_system_fonts=True)
    assert len(to_png(svg)) > 1.2 * len(without)


def test_phases_stand_below_each_other_on_one_scale() -> None:
    drawn = timeline("1f1b")
    panels = frames(drawn, View(phases=0), Look(), 1000, Wanted(40, 20))
    assert [panel.panel.name.split()[0] for panel in panels] == ["warm-up", "steady", "cool-down"]
    assert all(one.bottom < other.top for one, other in pairwise(panels))
    assert len({round(panel.per_second, 6) for panel in panels}) == 1
    assert "steady of device 0" in to_svg(drawn, view=View(phases=0))


def test_a_png_has_a_title_as_heavy_as_that_of_its_svg() -> None:
    svg = to_svg(timeline("1f1b"))
    assert svg.count(BOLD) == 1
    light = to_png(svg.replace(BOLD, ""))
    assert to_png(svg) != light

"""Pictures in the terminal: what they show, and that they fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.color import Color
from rich.style import Style
from rich.text import Text

from weft.cost import Provenance, Share
from weft.draw import View, Window, coloured, plain
from weft.draw.marks import Mark
from weft.draw.palette import colour
from weft.ir.graph import Graph
from weft.ir.kinds import Kind
from weft.lower import updates, wires
from weft.schedules import REGISTRY, Shape, gpipe, one_f_one_b
from weft.simulate import simulate
from weft.timeline import Timeline


def timeline(name: str, devices: int = 4, microbatches: int = 8, stages: int = 0) -> Timeline:
    schedule = REGISTRY[name]
    stages = stages or schedule.stages_per_device[0]
    return simulate(schedule(devices=devices, microbatches=microbatches, stages_per_device=stages))


ONE_F_ONE_B = """\
1f1b: 3 devices, 4 microbatches
0 F0 F1 F2 ............B0    F3 B1    ...B2    ...B3    |
1 ...F0 F1 ......B0    F2 B1    F3 B2    ...B3    ......|
2 ......F0 B0    F1 B1    F2 B2    F3 B3    ............|
  |0             |5             |10            |15
time 18   bubble wall 33.3%   bubble span 33.3%   peak 3 in flight
F forward   B backward   . idle"""

INTERLEAVED = """\
interleaved-1f1b: 2 devices, 2 microbatches, 4 stages
0 F0 F1 F0'F1'......B0'   ...B1'   B0    B1    |
1 ...F0 F1 F0'B0'   F1'B1'   B0    B1    ......|
  |0          |2          |4          |6
time 7.5   bubble wall 20.0%   bubble span 20.0%
peak 2 in flight
FF' forward   BB' backward   . idle"""

DUALPIPE = """\
dualpipe: 2 devices, 4 microbatches, 2 pipes
0 F0  F2' F1  B2'     F3'|B0      B3'     I1  W1  |
1 F2' F0  F3' B0      F1|B2'      B1      I3' W3' |
  |0                  |5                  |10
time 12   bubble wall 0.0%   bubble span 0.0%
peak 3 in flight
FF' forward   BB' backward   II' input gradient
WW' weight gradient   F|B in one slot   . idle"""


SMALL = """\
1f1b: 2 devices, 2 microbatches
0 F0 F1 ......B0    ...B1    |
1 ...F0 B0    F1 B1    ......|
  |0          |20 ms
time 45 ms   bubble wall 33.3%
bubble span 33.3%   peak 2 in flight
memory 3 bytes
F forward   B backward   . idle"""


def test_1f1b() -> None:
    assert plain(timeline("1f1b", 3, 4), width=80) == ONE_F_ONE_B


def test_times_in_seconds_have_a_unit() -> None:
    program = one_f_one_b(devices=2, microbatches=2)
    cost = Share(5e-3, 5e-3, 5e-3).cost(program)
    known = replace(cost, provenance={"forward": (Provenance.MEASURED,) * 2})
    assert plain(simulate(program, known), width=40) == SMALL


def test_two_stages_on_a_device() -> None:
    drawn = plain(timeline("interleaved-1f1b", 2, 2, stages=2), width=55)
    assert drawn == INTERLEAVED


def test_pairs() -> None:
    assert plain(timeline("dualpipe", 2, 4), width=60) == DUALPIPE


def test_where_primes_have_no_room_the_second_stage_is_in_lower_case() -> None:
    drawn = plain(timeline("interleaved-1f1b", 2, 2, stages=2), width=36)
    assert drawn.splitlines()[2] == "0 F0F1f0f1....b0  ..b1  B0  B1  |"


def test_where_primes_have_no_room_four_stages_of_a_device_differ() -> None:
    drawn = plain(timeline("interleaved-1f1b", 2, 2, stages=4), width=70).splitlines()
    assert drawn[1].startswith("0 F0F1f0f1Ḟ0Ḟ1ḟ0ḟ1")
    assert "FfḞḟ forward" in drawn[-1]
    short = (Mark(kind, 0, place=place) for kind in (Kind.I, Kind.W, Kind.R) for place in range(4))
    assert " ".join(mark.short_label for mark in short) == "I0 i0 İ0 ï0 W0 w0 Ẇ0 ẇ0 R0 r0 Ṙ0 ṙ0"


def test_the_legend_lists_what_is_in_view_alone() -> None:
    drawn = timeline("zb-h1")
    start = plain(drawn, width=200, view=View(window=Window(0, 3))).splitlines()
    assert start[-1] == "F forward   . idle"
    first = plain(drawn, width=200, view=View(window=Window(0, 4.5))).splitlines()
    assert first[-1] == "F forward   I input gradient   . idle"
    whole = plain(drawn, width=200).splitlines()
    assert whole[-1] == "F forward   I input gradient   W weight gradient   . idle"


def test_where_labels_have_no_room_letters_remain() -> None:
    drawn = plain(timeline("1f1b", 3, 4), width=21)
    assert drawn.splitlines()[2] == "0 FFF....B0FB1.B2.B3|"


def test_a_graph_has_a_row_for_each_stage() -> None:
    shape = Shape.of_graph(Graph.two_tower(1), microbatches=2)
    drawn = plain(simulate(one_f_one_b.program(shape)), width=60)
    assert drawn.splitlines()[1:4] == [
        "0 F0 F1 ......B0    ...B1    |",
        "1 F0 F1 ......B0    ...B1    |",
        "2 ...F0 B0    F1 B1    ......|",
    ]


def test_sends_do_not_show_and_updates_without_cost_are_a_letter() -> None:
    program = one_f_one_b(devices=3, microbatches=4)
    assert plain(simulate(wires(program)), width=80) == ONE_F_ONE_B
    picture = plain(simulate(updates(wires(program))), width=80)
    assert picture.count("U") == 3 + 1  # and in the legend
    assert "B3   U" in picture


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("name", [schedule.name for schedule in REGISTRY])
def test_every_picture_fits_its_width(name: str, width: int) -> None:
    for shape in ((4, 8), (8, 24)):
        drawn = timeline(name, *shape)
        for picture in (plain(drawn, width=width), coloured(drawn, width=width).plain):
            assert max(map(cell_len, picture.splitlines())) <= width


def test_of_many_devices_the_first_and_the_last_are_drawn() -> None:
    lines = plain(timeline("1f1b", 100, 4), width=80).splitlines()
    assert lines[32].startswith("31 ")
    assert lines[33] == "   36 more devices"
    assert lines[34].startswith("68 ")
    assert sum(line.endswith("|") for line in lines) == 64


@pytest.mark.parametrize(
    "share", [Share(0, 0, 0), Share(0, 0, 0, latency=1.0), Share(1e-9, 0, 1e9)]
)
def test_any_cost_can_be_drawn(share: Share) -> None:
    program = one_f_one_b(devices=3, microbatches=4)
    drawn = simulate(program, share.cost(program))
    assert "time" in plain(drawn, width=60)
    assert "time" in coloured(drawn, width=60).plain


# colours


def backgrounds(picture: Text, line: int) -> list[tuple[str, object]]:
    """Each piece of a line with its background."""
    row = picture.split("\n")[line]
    return [
        (row.plain[span.start : span.end], span.style.bgcolor.triplet)
        for span in row.spans
        if not isinstance(span.style, str) and span.style.bgcolor and span.style.bgcolor.triplet
    ]


def test_a_cell_has_the_colour_of_its_kind_stage_and_microbatch() -> None:
    picture = coloured(timeline("interleaved-1f1b", 2, 2, stages=2), width=100)
    assert backgrounds(picture, 1)[:3] == [
        ("  F0 ", colour(Mark(Kind.F, 0))),
        ("  F1 ", colour(Mark(Kind.F, 1))),
        (" F0' ", colour(Mark(Kind.F, 0, place=1))),
    ]


def test_in_narrow_cells_the_colour_says_the_kind() -> None:
    picture = coloured(timeline("1f1b", 3, 4), width=21)
    assert picture.plain.splitlines()[2].startswith("0 012····0 31 ·2 ·3 ")


def test_a_pair_is_stacked() -> None:
    picture = coloured(timeline("dualpipe", 2, 4), width=100)
    row = picture.split("\n")[2]
    (style,) = (span.style for span in row.spans if "▀" in row.plain[span.start : span.end])
    assert isinstance(style, Style)
    assert style.color == Color.from_rgb(*colour(Mark(Kind.F, 1)))
    assert style.bgcolor == Color.from_rgb(*colour(Mark(Kind.B, 2, place=1)))


def test_without_room_for_labels_two_actions_share_a_character() -> None:
    picture = coloured(timeline("1f1b", 3, 4), width=12)
    assert picture.plain.splitlines()[4] == "1 ▐▌▐▌▀▌▌▀·"


def test_actions_too_short_to_see_mix() -> None:
    picture = coloured(timeline("1f1b", 2, 4000), width=40)
    shades = {shade for _, shade in backgrounds(picture, 1)}
    assert colour(Mark(Kind.F, 0)) not in shades
    assert shades


def test_a_long_program_is_drawn_column_by_column() -> None:
    drawn = simulate(gpipe(devices=2, microbatches=20_000))
    first = plain(drawn, width=62).splitlines()[1]
    assert first.startswith("0 F")
    assert first.count("F") < first.count("B")

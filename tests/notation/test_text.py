from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings

from tests.notation.examples import one_f_one_b, two_pipes
from tests.notation.strategies import programs
from weft.errors import NotationError
from weft.ir.actions import Action
from weft.ir.graph import Backward, Graph, Stage
from weft.ir.kinds import Kind
from weft.ir.lanes import Period
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.notation import from_text, to_text

GOOD = """\
weft program 1
name 1f1b
microbatches 2
graph chain 2
place 0 1
device 0: 0F0 0F1 0B0 0B1
device 1: 1F0 1B0 1F1 1B1
"""


def test_a_program_reads_as_one_would_write_it() -> None:
    assert to_text(one_f_one_b(devices=2, microbatches=2)) == GOOD


def test_pipes_pairs_updates_and_wires_have_their_lines() -> None:
    assert to_text(two_pipes()).splitlines()[4:] == [
        "place 0 1",
        "place 1 0",
        "pipes 0 1 0",
        "device 0: 0F0 1F1 0F2|1B1",
        "device 1: 1F0 1B0 1U@0",
        "device 0 wire 0>1 activation: send:0-1F0",
    ]


def test_a_graph_lists_edges_and_unusual_stages() -> None:
    stages = (Stage(), Stage("left tower", 0.5), Stage("#", 1.0, Backward.INPUT, True))
    graph = Graph(stages, ((0, 2), (1, 2)), name="join")
    program = Program.build("", Placement.straight(3), [[]], microbatches=1, graph=graph)
    assert to_text(program).splitlines()[2:7] == [
        "graph stages 3 name=join",
        "edge 0 2",
        "edge 1 2",
        "stage 1 name=left\\u0020tower cost=0.5",
        "stage 2 name=\\u0023 backward=input whole-batch",
    ]


def test_a_periodic_program_brackets_its_body() -> None:
    lane = [Action(0, Kind.F, 0), Action(0, Kind.F, 1), Action(0, Kind.B, 0), Action(0, Kind.B, 1)]
    program = Program.build(
        "periodic",
        Placement.straight(1),
        [lane],
        microbatches=1,
        period=Period((1,), (2,), microbatches=1, versions=1, repeats=5),
        is_stashing=False,
    )
    assert to_text(program).splitlines()[5:] == [
        "period 1 versions 1 repeats 5",
        "no-stash",
        "device 0: 0F0 [ 0F1 0B0 ] 0B1",
    ]


@settings(max_examples=60, deadline=None)
@given(programs())
def test_every_program_comes_back(program: Program) -> None:
    text = to_text(program)
    back = from_text(text)
    assert back == program
    assert (back.name, back.graph.name) == (program.name, program.graph.name)
    assert all(line.isprintable() and line.isascii() for line in text.split("\n"))


def test_order_comments_blank_lines_and_line_ends_do_not_matter() -> None:
    header, *others = GOOD.splitlines()
    lines = ["# mine", "", header, *sorted(others[:4]), *others[4:]]
    assert from_text("\r\n".join(f"{line}   # why" for line in lines)) == from_text(GOOD)


def test_a_name_may_be_left_out_or_hold_spaces() -> None:
    assert from_text(GOOD.replace("name 1f1b\n", "")).name == ""
    assert from_text(GOOD.replace("1f1b", "my schedule")).name == "my schedule"


@pytest.mark.parametrize(
    "wrong",
    [
        "device 0: 0F0 0F1 0B1 0B0",
        "device 0: 0B0 0F0",
        "device 0:",
        "device 0: 1F0 1F0",
        "device 0: 0F0 0F1 0F2 0B7",
    ],
)
def test_a_program_that_is_readable_but_wrong_is_read(wrong: str) -> None:
    lines = GOOD.replace("device 0: 0F0 0F1 0B0 0B1", wrong)
    assert wrong in to_text(from_text(lines))


def test_a_program_may_lack_a_lane() -> None:
    assert len(from_text("".join(GOOD.splitlines(keepends=True)[:6]))) == 4


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        (GOOD, "", 1, "begins with the line `weft program 1`"),
        (GOOD, "\x00\x01\x02", 1, "begins with the line"),
        ("weft program 1", "weft program 2", 1, "version '2'; this Weft reads version 1"),
        ("weft program 1", "weft program", 1, "version ''"),
        ("weft program 1\n", "", 1, "begins with the line"),
        ("name", "title", 2, "'title' where one of name"),
        ("name 1f1b", 'name a"b', 2, "is no name"),
        ("name 1f1b", "name \\", 2, "is no name"),
        ("name 1f1b", "name \\ud800", 2, "is no name"),
        ("microbatches 2\n", "", None, "needs a line `microbatches 4`"),
        ("microbatches 2", "microbatches 2\nmicrobatches 2", 4, "stands in line 3 already"),
        ("microbatches 2", "microbatches", 3, "0 words where 1 belong"),
        ("microbatches 2", "microbatches 2 3", 3, "2 words where 1 belong"),
        ("microbatches 2", "microbatches 0", 3, "at least 1 microbatch"),
        ("microbatches 2", "microbatches -2", 3, "'-2' is not a whole number"),
        ("microbatches 2", "microbatches 2.5", 3, "'2.5' is not a whole number"),
        ("microbatches 2", "microbatches ２", 3, "is not a whole number"),
        ("microbatches 2", "microbatches 1000000000000", 3, "more than the 999,999,999"),
        ("microbatches 2", "microbatches 100000000", 3, "at most 4,000,000 stages"),
        ("microbatches 2", "microbatches " + "9" * 5000, 3, "more than the 999,999,999"),
        ("graph chain 2\n", "", None, "needs a line `graph chain 4`"),
        ("graph chain 2", "graph", 4, "a graph reads"),
        ("graph chain 2", "graph ring 2", 4, "a graph reads"),
        ("graph chain 2", "graph chain", 4, "0 words where 1 belong"),
        ("graph chain 2", "graph chain 2 name=a name=b", 4, "a graph reads"),
        ("graph chain 2", "graph chain 0", 4, "at least one stage"),
        ("graph chain 2", "graph chain 999999999", 4, "at most 65,536"),
        ("graph chain 2", "graph chain 3", 5, "2 words where 3 belong"),
        ("graph chain 2", "graph chain 2\nedge 0 1", 5, "has its edges already"),
        ("graph chain 2", "graph stages 2\nedge 1 0", 5, "edge 1 -> 0"),
        ("graph chain 2", "graph stages 2\nedge 0 9", 5, "edge 0 -> 9"),
        ("graph chain 2", "graph stages 2\nedge 0", 5, "1 words where 2 belong"),
        ("graph chain 2", "graph stages 2\nedge 0 1\nedge 0 1", 6, "stands in line 5 already"),
        ("graph chain 2", "graph chain 2\nstage 2 cost=1", 5, "stages are 0 to 1"),
        ("graph chain 2", "graph chain 2\nstage", 5, "0 words where 1 belong"),
        ("graph chain 2", "graph chain 2\nstage 0\nstage 0", 6, "stands in line 5 already"),
        ("graph chain 2", "graph chain 2\nstage 0 colour=red", 5, "a stage reads"),
        ("graph chain 2", "graph chain 2\nstage 0 cost=1 cost=2", 5, "a stage reads"),
        ("graph chain 2", "graph chain 2\nstage 0 cost=-1", 5, "is no cost"),
        ("graph chain 2", "graph chain 2\nstage 0 cost=nan", 5, "is no cost"),
        ("graph chain 2", "graph chain 2\nstage 0 cost=1e999", 5, "is no finite cost"),
        ("graph chain 2", "graph chain 2\nstage 0 backward=half", 5, "one of full, input, none"),
        ("graph chain 2", "graph chain 2\nstage 0 whole-batch=no", 5, "takes no value"),
        ("place 0 1\n", "", None, "needs a line `place 0 1 2 3`"),
        (GOOD[GOOD.index("device 0") :], "", None, "needs a line `device 0: 0F0 0B0`"),
        ("place 0 1", "place 0 2", 5, "numbered from 0 without gaps"),
        ("place 0 1", "place 0 1\nplace 0", 6, "1 words where 2 belong"),
        ("place 0 1", "place 0 1\npipes 0 1", 6, "pipe 1, but 1 pipes"),
        ("place 0 1", "place 0 1\npipes 0", 6, "1 words where 2 belong"),
        ("place 0 1", "place 0 1\nno-stash please", 6, "stands alone"),
        ("place 0 1", "place 0 1\nperiod", 6, "a period reads"),
        ("place 0 1", "place 0 1\nperiod 2 versions 1 repeats", 6, "2 words where 3 belong"),
        ("place 0 1", "place 0 1\nperiod 999999999 versions 1 repeats 1", 6, "at most 4,000,000"),
        ("place 0 1", "place 0 1\nperiod 2 versions 1 repeats 1", 7, "encloses what repeats in ["),
        ("place 0 1", "place 0 1\n" * 65, 69, "65 pipes"),
        ("0F0 0F1", " ".join(["0U@0", "0U"] * 10), None, "19 updates"),
        ("0F0 0F1", "0I0/0.experts 0W0/0.experts " * 10, None, "18 updates, reductions"),
        ("place 0 1", "place 0 1\ntie 0", 6, "two stages or more"),
        ("place 0 1", "place 0 1\ntie 1 0", 6, "in model order"),
        ("place 0 1", "place 0 1\ntie 0 7", 6, "names stage 7"),
        ("place 0 1", "place 0 1\ntie 0 x", 6, "'x' is not a whole number"),
        ("place 0 1", "place 0 1\nnorm 0 1\nnorm 1", 7, "one norm, not several"),
        ("0F0 0F1", "0F0 0U@0~0", 6, "stage 0 has no end of a tied weight 0"),
        ("0F0 0F1", "0F0 0F1~0", 6, "only a sum, an update or a gather names a tied weight"),
        ("device 0:", "device 0: [ ]", 6, "takes a line `period 4 versions 1 repeats 3`"),
        ("device 0:", "device 0: ] [", 6, "one [ and one ]"),
        ("device 0:", "device 0", 6, "a lane reads"),
        ("device 0:", "device :", 6, "is not a whole number"),
        ("device 0:", "device 2:", 6, "uses devices 0 to 1"),
        ("device 0:", "device 0 disk:", 6, "'disk' where one of compute"),
        ("device 0:", "device 0 wire 0>1:", 6, "a lane on a channel reads"),
        ("device 0:", "device 0 wire 0>1 sideways:", 6, "one of activation, gradient"),
        ("device 0:", "device 0 wire 01 activation:", 6, "1 words where 2 belong"),
        ("device 0:", "device 0 wire 0>5 activation:", 6, "device 5"),
        ("device 1:", "device 0:", 7, "the lane `device 0` stands twice"),
        ("0F0 0F1", "0F0 0F1garbage", 6, "'0F1garbage' is not an action"),
        ("0F0 0F1", "0F0 0F", 6, "'0F' names no microbatch"),
        ("0F0 0F1", "0F0 9F1", 6, "9F1, action 1 of its lane: stages are 0 to 1"),
        ("0F0 0F1", "0F0 send:0-2F1", 6, "no edge from 0 to 2"),
        ("0F0 0F1", "0F0 0U@0#1", 6, "pipes are 0 to 0"),
        ("0F0 0F1", "0F0|0F1|0F2", 6, "a pair has two actions"),
        ("0F0 0F1", "0F0|", 6, "is not an action"),
        ("0F0 0F1", "0F0 0F1/9999.combine", 6, "at most 4096 segments"),
        ("0F0 0F1", "0F0 0F999999999", 6, "more than the 4,000,000 stages (or edges) x micro"),
        ("0F0 0F1", "0F0 0F0..999999999", 6, "more than the 2,000,000 actions"),
    ],
)
def test_what_cannot_be_read_is_refused_by_line(
    old: str, new: str, line: int | None, reason: str
) -> None:
    with pytest.raises(NotationError) as refusal:
        from_text(GOOD.replace(old, new, 1), source="mine.weft")
    assert reason in refusal.value.reason
    assert refusal.value.line == line
    assert refusal.value.source == "mine.weft"


@pytest.mark.parametrize("end", range(len(GOOD)))
def test_a_text_cut_off_anywhere_is_read_or_refused(end: int) -> None:
    with suppress(NotationError):
        from_text(GOOD[:end])


def test_262144_actions_come_back() -> None:
    program = one_f_one_b(devices=64, microbatches=2048)
    assert from_text(to_text(program)) == program


def test_norms_that_join_more_than_fits_in_memory_are_refused() -> None:
    every = range(3000)
    lines = [
        "weft program 1",
        "microbatches 1",
        "graph chain 3000",
        f"place {'0 ' * 3000}",
        f"norm {' '.join(map(str, every))}",
        f"device 0: {' '.join(f'{stage}U@0' for stage in every)}",
    ]
    with pytest.raises(NotationError, match="join 9,000,000 gradients and updates"):
        from_text("\n".join(lines))

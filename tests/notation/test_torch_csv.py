from __future__ import annotations

import pytest

from tests.notation.examples import one_f_one_b, two_pipes
from weft.errors import NotationError
from weft.ir.actions import Action, Pair
from weft.ir.kinds import Kind
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.notation import from_torch_csv, to_text, to_torch_csv

# As torch 2.13 writes Schedule1F1B for 4 ranks and 6 microbatches: the last rank is wrong.
BROKEN = """\
0F0,0F1,0F2,0F3,0B0,0F4,0B1,0F5,0B2,0B3,0B4,0B5,0REDUCE_GRAD\r
1F0,1F1,1F2,1B0,1F3,1B1,1F4,1B2,1F5,1B3,1B4,1B5,1REDUCE_GRAD\r
2F0,2F1,2B0,2F2,2B1,2F3,2B2,2F4,2B3,2F5,2B4,2B5,2REDUCE_GRAD\r
3F1,3B0,3F2,3B1,3F3,3B2,3F4,3B3,3F5,3B4,3F6,3B5,3REDUCE_GRAD\r
"""

# ScheduleInterleaved1F1B for 2 ranks, 4 microbatches.
INTERLEAVED = """\
0F0,0F1,2F0,2F1,,,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,,2B2,,2B3,,0B2,,0B3
,1F0,1F1,,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,,1B2,,1B3
"""


def test_idle_cells_are_skipped_and_the_placement_follows_from_the_rows() -> None:
    program = from_torch_csv(INTERLEAVED, source="/tmp/interleaved.csv")
    assert program.placement == Placement.looped(2, 2)
    assert program.microbatches == 4
    assert program.name == "interleaved"
    assert len(program) == 32


def test_a_table_that_names_a_microbatch_too_many_is_read_for_verification_to_refuse() -> None:
    program = from_torch_csv(BROKEN)
    assert program.microbatches == 6
    assert program.actions[-2] == Action(3, Kind.F, 6)


def test_an_overlapped_cell_is_a_pair() -> None:
    program = from_torch_csv("0F0,(0F1;3B0)OVERLAP_F_B,0I1,0W1\n1F0,2F0")
    slots = list(program.lane(0).slots())
    assert slots[1] == Pair(Action(0, Kind.F, 1), Action(3, Kind.B, 0))
    assert program.placement == Placement.wave(2)


def test_a_table_comes_back() -> None:
    program = one_f_one_b(devices=3, microbatches=4)
    assert from_torch_csv(to_torch_csv(program)) == program


def test_a_pair_is_an_overlapped_cell() -> None:
    lane: list[Action | Pair] = [
        Action(0, Kind.F, 0),
        Pair(Action(0, Kind.F, 1), Action(0, Kind.B, 0)),
    ]
    program = Program.build("p", Placement.straight(1), [lane], microbatches=2)
    assert to_torch_csv(program) == "0F0,(0F1;0B0)OVERLAP_F_B\n"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "rank 0 runs nothing"),
        ("0F0\n,,\n1F0", 2, "rank 1 runs nothing"),
        ("0F0,0F1garbage", 1, "'0F1garbage' is no action of torch's"),
        ("0F0,0F", 1, "'0F' is no action"),
        ("0F0,-1F0", 1, "'-1F0' is no action"),
        ("0F0,0F0\x00", 1, "is no action"),
        ("0F0\n1F0,1SEND_B0", 2, "compute-only tables"),
        ("0F0,0UNSHARD", 1, "compute-only tables"),
        ("0F0,(0F1;0B0)TOGETHER", 1, "is no action"),
        ("0F0,(0F1)OVERLAP_F_B", 1, "is no action"),
        ("0F0,(0F1;0B0;0B1)OVERLAP_F_B", 1, "is no action"),
        ("0F0\n0B0", 2, "stage 0 runs on ranks 0 and 1"),
        ("0F0\n7F0", None, "no rank runs stage 1, but one runs stage 7"),
        ("0B0", None, "no rank runs a forward of stage 0"),
        ("0F0,0F999999999", 1, "stages (or edges) x microbatches"),
    ],
)
def test_what_is_no_table_is_refused(text: str, line: int | None, reason: str) -> None:
    with pytest.raises(NotationError) as refusal:
        from_torch_csv(text, source="table.csv")
    assert reason in refusal.value.reason
    assert (refusal.value.source, refusal.value.line) == ("table.csv", line)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (Action(0, Kind.R, 0), "recomputation"),
        (Action(0, Kind.F, 0, span=2), "over several microbatches"),
        (Action(0, Kind.F, 0, version=1), "weight versions"),
        (Action(0, Kind.F, 0, segment=1), "parts of a layer"),
    ],
)
def test_what_torch_has_no_word_for_is_not_written(action: Action, words: str) -> None:
    program = Program.build("p", Placement.straight(1), [[action]], microbatches=2)
    with pytest.raises(NotationError, match=words):
        to_torch_csv(program)


def test_a_second_pipe_is_not_written() -> None:
    with pytest.raises(NotationError, match="second pipe"):
        to_torch_csv(two_pipes())


def test_updates_and_wires_are_left_out() -> None:
    lane = [Action(0, Kind.F, 0, version=0), Action(0, Kind.UPDATE, version=0)]
    program = Program.build("p", Placement.straight(1), [lane], microbatches=1)
    assert "0U@0" in to_text(program)
    assert to_torch_csv(program) == "0F0\n"

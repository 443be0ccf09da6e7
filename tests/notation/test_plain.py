from __future__ import annotations

from tests.notation.examples import one_f_one_b, two_pipes
from weft.ir.actions import Action, Pair
from weft.ir.kinds import Kind
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.notation import plain


def test_a_device_is_a_line_without_stages() -> None:
    assert plain(one_f_one_b(devices=2, microbatches=2)) == "F0 F1 B0 B1\nF0 B0 F1 B1"


def test_the_second_stage_of_a_device_has_a_prime() -> None:
    lanes = [[Action(0, Kind.F, 0), Action(3, Kind.F, 0)], [Action(1, Kind.F, 0)]]
    program = Program.build("v", Placement.wave(2), lanes, microbatches=1)
    assert plain(program) == "F0 F0'\nF0"


def test_the_stage_of_the_second_pipe_has_a_prime_and_wires_are_left_out() -> None:
    assert plain(two_pipes()) == "F0 F1' F2|B1'\nF0 B0 U0"


def test_spans_segments_updates_and_foreign_stages_are_said() -> None:
    lane: list[Action | Pair] = [
        Action(0, Kind.F, 0, span=2, version=1),
        Pair(Action(2, Kind.F, 1, version=1), Action(2, Kind.B, 0, segment=1)),
        Action(2, Kind.UPDATE, version=3),
        Action(2, Kind.REDUCE, version=3),
        Action(1, Kind.F, 0),
    ]
    program = Program.build("all", Placement.looped(2, 2), [lane], microbatches=2)
    assert plain(program) == "F0..1 F1'|B0'/0.dispatch U3' reduce3' 1F0\n"

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.verify import programs
from weft.errors import InputError
from weft.ir.actions import Action, Pair
from weft.ir.graph import Backward
from weft.ir.kinds import Kind
from weft.ir.lanes import Period
from weft.ir.program import Program
from weft.lower import split, split_late, wires
from weft.notation.tokens import written
from weft.schedules import zb_h1
from weft.verify import verify


def words(program: Program, lane: int) -> str:
    return " ".join(written(program.lane(lane), program.graph.edges))


def test_each_backward_becomes_an_input_and_a_weight_gradient() -> None:
    program = split(programs.one_f_one_b(2, 2))
    assert words(program, 0) == "0F0 0F1 0I0 0W0 0I1 0W1"
    assert words(program, 1) == "1F0 1I0 1W0 1F1 1I1 1W1"


def test_a_weight_gradient_may_wait() -> None:
    program = split_late(programs.one_f_one_b(2, 3), late=(1, 2))
    assert words(program, 0) == "0F0 0F1 0I0 0F2 0I1 0W0 0I2 0W1 0W2"
    assert words(program, 1) == "1F0 1I0 1F1 1I1 1F2 1I2 1W0 1W1 1W2"


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_weights_later_by_d_on_device_d_makes_zb_h1_of_1f1b(devices: int) -> None:
    late = split_late(programs.one_f_one_b(devices, 8), late=range(devices))
    assert late == zb_h1(devices=devices, microbatches=8)


@pytest.mark.parametrize("order", ["FB", "BF"])
def test_a_pair_keeps_the_input_gradient_and_w_follows(order: str) -> None:
    pair = [Action(0, Kind.F, 1), Action(0, Kind.B, 0)]
    first, second = pair if order == "FB" else pair[::-1]
    lane: list[Action | Pair]
    lane = [Action(0, Kind.F, 0), Pair(first, second), Action(0, Kind.B, 1)]
    program = split(programs.program("pairs", [lane], 2))
    slots = list(program.lane(0).slots())
    kinds = [tuple(a.kind for a in slot) if isinstance(slot, Pair) else slot.kind for slot in slots]
    paired = (Kind.F, Kind.I) if order == "FB" else (Kind.I, Kind.F)
    assert kinds == [Kind.F, paired, Kind.W, Kind.I, Kind.W]


def test_two_backwards_of_a_pair_leave_two_weight_gradients_after_it() -> None:
    pair = Pair(Action(0, Kind.B, 0), Action(0, Kind.B, 1))
    lane: list[Action | Pair] = [Action(0, Kind.F, 0), Action(0, Kind.F, 1), pair]
    program = split(programs.program("pairs", [lane], 2))
    assert words(program, 0) == "0F0 0F1 0I0 0I1 0W0 0W1"
    assert [int(joined) for joined in program.actions.joined] == [0, 0, 0, 1, 0, 0]


def test_frozen_weights_have_no_gradient() -> None:
    program = split(programs.two_tower(1, backward=Backward.INPUT))
    assert words(program, 0) == "0F0 0I0"
    assert words(program, 1) == "1F0 1I0 1W0"


@pytest.mark.parametrize("name", programs.VALID)
def test_a_split_program_is_valid(name: str) -> None:
    assert verify(split(programs.VALID[name])).is_valid
    assert verify(wires(split(programs.VALID[name]))).is_valid


def test_a_periodic_program_is_split_in_each_of_its_parts() -> None:
    program = split(programs.periodic_two_bw())
    assert program.unrolled(4) == split(programs.two_bw(6))
    assert isinstance(program.period, Period)
    assert program.period == replace(program.period, prologue=(8, 7), body=(7, 7))


def test_lateness_is_counted_for_each_device() -> None:
    for late in [(0,), (0, -1)]:
        with pytest.raises(InputError, match="for each of the devices"):
            split_late(programs.gpipe(2, 1), late=late)
    with pytest.raises(InputError, match="repeats"):
        split_late(programs.periodic_two_bw(), late=(1, 1))
